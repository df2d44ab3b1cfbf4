"""Rest and other weights: what a runner that has loaded gives back, brings back, and puts in its weights' place.

Other weights are loaded as the first ones were, by the same loader and past the same checks, into a second runner
beside this one, whose model then takes the old one's place. So this rank's part, tied weights, dtypes and merged
experts are as they would be at a start, and until the last moment the old weights are untouched. It costs the memory
of both for that long; weights that stay mapped from their file cost none.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.interfaces import ModelRunner, NoOptions, RunnerContext
from enginebay.messages import FinishWeightUpdate, StartWeightUpdate, WeightsChunk
from enginebay.worker.loader_empty import weights_of
from enginebay.worker.loader_incoming import IncomingWeights
from enginebay.worker.loader_sources import WeightSource
from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v1.attention import PagedCache
from enginebay_runner_v1.invariant import Invariance
from enginebay_runner_v1.parallel import WorldShare

__all__ = ["WeightLife", "num_bytes"]


def num_bytes(model: Any) -> int:
    """What the weights of a model take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights_of(model).values())


def _move(model: Any, device: torch.device) -> None:
    """Move every weight in place: whoever holds a parameter goes on to hold it. A no-op for those that are there."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.to(device)
    gc.collect()


class WeightLife(ModelRunner[NoOptions]):
    """The half of ``RunnerV1`` that rests and changes its weights; the other half loads and runs."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        self._model: Any = None
        self._shapes: tuple[LayerShape, ...] = ()
        self._groups: tuple[LayerGroup, ...] = ()
        self._cache: PagedCache | None = None
        self._invariance: Invariance | None = None
        self._share = WorldShare(context)
        self._incoming: IncomingWeights | None = None
        self._num_blocks = 0
        self._weight_bytes = 0

    @abstractmethod
    def _load(self, weights: WeightSource | None) -> None: ...

    @abstractmethod
    def _bind(self, num_blocks: int) -> None: ...

    @abstractmethod
    def _attach(self) -> None: ...

    @abstractmethod
    def _unbind(self) -> None: ...

    def sleep(self, level: int) -> None:
        """Drop the cache; level 1 moves the weights to host memory, where those of a CPU are already."""
        self._unbind()
        if level > 1:
            self._model = None
        else:
            _move(self._model, torch.device("cpu"))

    def wake_up(self, tags: frozenset[str]) -> None:
        """Move the weights back, and reserve a cache of the same size."""
        if "weights" in tags:
            _move(self._model, torch.device(self.context.device.name()))
        if "kv_cache" in tags:
            self._bind(self._num_blocks)

    def start_weight_update(self, update: StartWeightUpdate) -> None:
        """A folder is looked at now, and loaded at the end: the files may not change until then."""
        self._incoming = IncomingWeights(update.path, self._weight_bytes * len(self.context.world.ranks))

    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        """Keep them in host memory."""
        assert self._incoming is not None, "the worker keeps the order"
        for piece in chunk.pieces:
            self._incoming.given.put(piece)

    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        """Load them into a runner of their own, try that one, and take its model; or keep ours."""
        assert self._incoming is not None, "the worker keeps the order"
        other = type(self)(self.context)
        other._load(self._incoming.source)
        if (other._shapes, other._groups) != (self._shapes, self._groups):
            raise ModelError("the new weights make another KV cache than the old ones: start an engine on them")
        other._cache, other._num_blocks = self._cache, self._num_blocks
        other._attach()
        if self._cache is not None:
            other.warm_up()
        self._model, self._share, self._invariance = other._model, other._share, other._invariance
        self._incoming = None

    def abort_weight_update(self) -> None:
        """Drop what came."""
        self._incoming = None

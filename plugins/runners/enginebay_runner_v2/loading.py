"""The weights of runner ``v2`` through its life: loaded, exchanged, dropped at rest, and laid out for the kernels."""

from __future__ import annotations

import gc
import logging
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

import torch

from enginebay.interfaces import ModelRunner, RunnerContext
from enginebay.messages import FinishWeightUpdate, StartWeightUpdate, WeightsChunk
from enginebay.worker.loader import FolderWeights, torch_dtype
from enginebay.worker.loader_facts import find_places, read_weights
from enginebay.worker.loader_incoming import IncomingWeights
from enginebay.worker.loader_sources import WeightSource
from enginebay_runner_v2.kernels import Kernels
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.own_weights import OwnWeights
from enginebay_runner_v2.pages import Pages
from enginebay_runner_v2.prepare import prepare
from enginebay_runner_v2.prepared import PreparedStep
from enginebay_runner_v2.ranks import Ranks
from enginebay_runner_v2.step import Step

__all__ = ["Loading"]

_LOG = logging.getLogger("enginebay.runner.v2")


class Loading(ModelRunner[RunnerV2Options]):
    """The half of ``RunnerV2`` that has the weights; the other half runs steps with them."""

    def __init__(self, context: RunnerContext[RunnerV2Options]) -> None:
        super().__init__(context)
        self._prepared: PreparedStep | None = None
        self._step: Step | None = None
        self._pages: Pages | None = None
        self._num_blocks = 0
        self._incoming: IncomingWeights | None = None
        self._kernels = Kernels(context.options.building, context.announce)
        self.ranks = Ranks(context)

    @property
    def _int8(self) -> bool:
        return self.context.options.weights == "int8"

    @property
    def prepared(self) -> PreparedStep:
        """The captured step."""
        assert self._prepared is not None, "before load_model"
        return self._prepared

    @property
    def step(self) -> Step:
        """The step, with weights."""
        assert self._step is not None, "before load_model, or asleep"
        return self._step

    def load_model(self) -> None:
        """Capture the model, or find its graph where it was kept, and map the weights."""
        native = self._ready()
        with self.ranks.agreed():
            self._prepared = self.ranks.bound(prepare(self.context))
            self._step = self._make(FolderWeights(Path(self.context.model.path)), native)

    def load_empty(self) -> None:
        """The same graph over weights of any content; a peer fills them."""
        with self.ranks.agreed():
            self._prepared = self.ranks.bound(prepare(self.context))
            facts = self._prepared.facts
            dtype, kept, own = torch_dtype(self.context.dtype), set(facts.float32), self._own()
            state = {
                name: torch.empty(own.shape(name), dtype=torch.float32 if name in kept else dtype)
                for name in facts.shapes
            }
            self._step = Step.from_weights(self._prepared, state, native=False, int8=self._int8)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The constants of the graph, each laid out as plain weights are."""
        return self.step.plain_constants()

    def weights_received(self) -> None:
        """Lay the weights out for the kernels, if these are there."""
        self.change_over()

    def _make(self, source: WeightSource, native: bool) -> Step:
        """The step with this rank's part of these weights; raises ``ModelError`` for those that are not the model's."""
        facts = self.prepared.facts
        state = read_weights(
            source,
            facts,
            find_places(source, facts),
            dtype=torch_dtype(self.context.dtype),
            device=torch.device("cpu"),
            part=self._own(),
        )
        return Step.from_weights(self.prepared, state, native=native, int8=self._int8)

    def _own(self) -> OwnWeights:
        return OwnWeights((self.prepared.body, self.prepared.head), self.prepared.facts)

    def _ready(self) -> bool:
        """Whether steps can run natively; if not, somebody builds the kernels from here on.

        Tensor ranks change over together, so that between the layers all have the same numbers, bit for bit.
        """
        if self.context.options.compile == "off":
            return False
        self._kernels.begin()
        if self._int8:  # the largest step is tried before the short one, and without them it is slow
            self._kernels.wait()
        return self.ranks.all(self._kernels.ready())

    def change_over(self) -> None:
        """Run natively from here on, if the kernels are there by now and were not before. Between two steps."""
        if self._step is not None and not self._step.native and self._ready():
            self._step = self._step.as_native()
            self._attach()
            _LOG.info("the kernels are built: steps run natively from here on")

    def make_native(self) -> None:
        """Where the start is to wait for the kernels, wait."""
        self._kernels.wait()
        self.change_over()

    @abstractmethod
    def _bind(self, num_blocks: int) -> None:
        """Reserve a cache."""

    @abstractmethod
    def warm_up(self) -> None:
        """Run one short step."""

    def bind_cache(self, pages: Pages) -> None:
        """Give the step this cache, now and when other weights come."""
        self._pages = pages
        self._attach()

    def _attach(self) -> None:
        if self._step is not None and self._pages is not None:
            self._step.bind_cache(self._pages)

    def drop_cache(self) -> None:
        """Give the cache back."""
        self._pages = None
        if self._step is not None:
            self._step.drop_cache()

    def sleep(self, level: int) -> None:
        """Drop the cache; level 2 drops the weights too, which are in host memory already."""
        self.drop_cache()
        if level > 1:
            self._step = None
            gc.collect()

    def wake_up(self, tags: frozenset[str]) -> None:
        """Reserve a cache of the same size; the weights of a CPU have not moved."""
        if "kv_cache" in tags:
            self._bind(self._num_blocks)

    def start_weight_update(self, update: StartWeightUpdate) -> None:
        """A folder is looked at now, and loaded at the end: the files may not change until then."""
        self._incoming = IncomingWeights(update.path, self._plain_bytes())

    def _plain_bytes(self) -> int:
        size = torch_dtype(self.context.dtype).itemsize
        return sum(torch.Size(shape).numel() for shape in self.prepared.facts.shapes.values()) * size

    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        """Keep them in host memory."""
        assert self._incoming is not None, "the worker keeps the order"
        for piece in chunk.pieces:
            self._incoming.given.put(piece)

    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        """Make a step of them, try that one, and keep it; or keep ours."""
        assert self._incoming is not None, "the worker keeps the order"
        native = self._ready()
        with self.ranks.agreed():
            ours, self._step = self._step, self._make(self._incoming.source, native)
        try:
            self._attach()
            if self._pages is not None:
                self.warm_up()
        except BaseException:
            self._step = ours
            raise
        self._incoming = None

    def abort_weight_update(self) -> None:
        """Drop what came."""
        self._incoming = None

    def drop(self) -> None:
        """Give everything back; also after a failed load."""
        self._kernels.leave()
        self.ranks.leave()
        self._step = self._prepared = self._pages = self._incoming = None

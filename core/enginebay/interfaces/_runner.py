"""Model runners: how a worker turns a schedule into tokens. One runner object lives in each worker.

The worker calls, in this order: ``load_model``, ``kv_cache_spec``, ``profile_run``, ``initialize_kv_cache``,
``warm_up``, then ``execute_model`` for every step, and ``close``. The scheduler sends differences;
``enginebay.worker.RequestTable`` keeps the state for you (it needs no torch)::

    class MyRunner(ModelRunner[NoOptions]):
        def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
            rows = self.table.begin_step(scheduler_output)     # one row per request, in batch order
            ...                                                # compute
            return self.table.finish_step(sampled)             # remembers the drawn tokens too

What batches your runner can take is data, not code: see ``BatchConstraints``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from enginebay.interfaces._device import Device
from enginebay.interfaces._graph import GraphPass
from enginebay.interfaces._options import Options
from enginebay.messages import (
    FinishWeightUpdate,
    GrammarOutput,
    KVCacheSpec,
    ModelInfo,
    ModelRunnerOutput,
    RankPlace,
    SchedulerOutput,
    StartWeightUpdate,
    WeightsChunk,
    WorldPlan,
)

O = TypeVar("O", bound=Options)


class BatchConstraints(Struct, frozen=True, kw_only=True):
    """What batches a runner can take; the scheduling mechanics keep them for every policy.

    ``block_sizes``: allowed KV block sizes in tokens, the preferred one first; empty means any. ``chunk_multiple``:
    a chunk of a prompt that is not its last has a multiple of this many tokens. ``chunked_prefill``: whether a prompt
    may be split at all. ``mixed_prefill_decode``: whether one step may hold both. ``max_prefills_per_step``,
    ``max_consecutive_prefill_steps`` (while something could decode), ``max_num_seqs``, ``max_num_batched_tokens`` (of
    one step) and ``max_batch_context_tokens`` (sum over the batch of tokens computed after the step) are upper bounds;
    None means none. ``max_tokens_per_step``: tokens that one request may draw in one step; the engine stops with the
    runner's name when it draws more. Where speculation is on, those that schedulers see say one more than the proposals
    that a request may have. ``max_unsampled_steps`` is kept for speculation: nothing reads it yet.
    ``reserved_blocks`` are never handed out. ``prefix_caching``: whether cached blocks may be reused.
    """

    block_sizes: tuple[int, ...] = ()
    chunk_multiple: int = 1
    chunked_prefill: bool = True
    mixed_prefill_decode: bool = True
    max_prefills_per_step: int | None = None
    max_consecutive_prefill_steps: int | None = None
    max_num_seqs: int | None = None
    max_batch_context_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    max_tokens_per_step: int = 1
    max_unsampled_steps: int | None = None
    reserved_blocks: int = 0
    prefix_caching: bool = True


@runtime_checkable
class AsyncModelRunnerOutput(Protocol):
    """A result whose tokens are still on their way from the device, or from another rank."""

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the tokens and return them. The worker asks for it on the output rank alone."""


@dataclass(frozen=True, kw_only=True)
class WorkerGroups:
    """The process groups that a worker has joined, as the framework's handles (torch: ``ProcessGroup``).

    ``tensor`` has the ranks that share this one's layers, ``pipeline`` those that hold the other stages of the same
    part, ``world`` all of the plan's; None stands for a group of this rank alone.
    """

    world: Any = None
    tensor: Any = None
    pipeline: Any = None


@dataclass(frozen=True, kw_only=True)
class RunnerContext(Generic[O]):
    """Everything a runner is given. Frozen; a later minor version may add fields.

    ``block_size`` (tokens), ``max_model_len``, ``max_num_seqs`` and ``max_num_batched_tokens`` are the values in
    force. ``dtype`` is "float32", "bfloat16" or "float16", for weights and activations;
    ``cache_dtype`` for the KV cache. ``max_draft_tokens``: as many proposals may come for one request in one step.
    ``graph_passes``: those that rewrite what a runner captures, in the order in which they run.
    ``announce(seconds)`` says that what the runner does now (a compile, a first run) may take so long from now on:
    until then no deadline of a step or of a phase ends it, for an hour at most.
    """

    options: O
    model: ModelInfo
    device: Device
    place: RankPlace
    world: WorldPlan
    dtype: str
    cache_dtype: str
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    seed: int
    batch_invariant: bool = False
    max_draft_tokens: int = 0
    groups: WorkerGroups = field(default_factory=WorkerGroups)
    announce: Callable[[int], None] = lambda seconds: None
    graph_passes: tuple[GraphPass, ...] = ()


class ModelRunner(ABC, Generic[O]):
    """Turns schedules into tokens on one rank. Construction assigns; ``load_model`` and after it do what can fail."""

    def __init__(self, context: RunnerContext[O]) -> None:
        self.context = context

    @abstractmethod
    def load_model(self) -> None:
        """Read this rank's weights from ``context.model.path``.

        Raises ``ModelError`` when the folder is damaged or the model cannot be run exactly.
        """

    @abstractmethod
    def kv_cache_spec(self) -> KVCacheSpec:
        """What the KV cache must hold per block on this rank; called after ``load_model``."""

    @abstractmethod
    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Allocate the cache: ``num_blocks`` blocks per group, ids 0 to ``num_blocks - 1``."""

    @abstractmethod
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """Run one step; None means: call ``sample_tokens`` next, also when the step holds partial prefills only."""

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Draw the tokens of the step before. Only a runner whose ``execute_model`` returns None implements it."""
        raise NotImplementedError(f"{type(self).__name__}.execute_model returned None, but it has no sample_tokens")

    def profile_run(self) -> None:
        """Run the largest step that may come, so that the worker can read the peak memory. Optional."""

    def warm_up(self) -> None:
        """Do what the first step should not have to wait for. Optional."""

    def sleep(self, level: int) -> None:
        """Give the KV cache's memory back, and that of the weights: level 1 keeps them in host memory, level 2 drops
        them. Optional, declared as the capability ``sleep``. What raises has changed nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} does not sleep")

    def wake_up(self, tags: frozenset[str]) -> None:
        """Take back what sleep gave away: "weights" (after level 1 alone) and "kv_cache", with as many blocks as
        before and any content. After level 2 the weights come by a weight update, before or after the cache.
        """
        raise NotImplementedError(f"{type(self).__name__} does not sleep, and so does not wake up")

    def start_weight_update(self, update: StartWeightUpdate) -> None:
        """Make ready for other weights of the same shapes: all of them from the folder ``update.path``, or in chunks.

        Optional, with the three methods below; declared as the capability ``update_weights``. Until the update is
        finished the old weights stay as they are. Raises ``ModelError`` for a folder that does not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not take other weights")

    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        """Take some tensors, whole or in pieces, under the names that the model's file has for them."""
        raise NotImplementedError(f"{type(self).__name__} does not take other weights")

    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        """Put the new weights in the place of the old ones, or raise and leave the old ones in theirs."""
        raise NotImplementedError(f"{type(self).__name__} does not take other weights")

    def abort_weight_update(self) -> None:
        """Forget what came since ``start_weight_update``; called also when that has raised."""

    def weights(self) -> Mapping[str, Any]:
        """This rank's weights by name, in one order for equal configs, as torch tensors: to be sent, or filled.

        Optional, with ``load_empty`` and ``weights_received``; declared as the capability ``send_weights``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not show its weights")

    def load_empty(self) -> None:
        """In place of ``load_model``: the same model with weights of any content, and no weights file read."""
        raise NotImplementedError(f"{type(self).__name__} does not load without weights")

    def weights_received(self) -> None:
        """What ``weights`` returned is filled: the rest of what ``load_model`` does."""

    def in_force(self) -> dict[str, str]:
        """What was really chosen ("attention": "paged sdpa", …), for ``check`` and the start span. Optional."""
        return {}

    def close(self) -> None:
        """Give back the device's memory. Optional; called once, also after a failed load."""

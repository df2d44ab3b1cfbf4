"""Mutants of the KV cache and the scheduler's mechanics: who holds a block, who finds it, and how much a step takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from enginebay.kvcache import BlockPool, KVCacheManager
from enginebay.messages import FinishReason
from enginebay.scheduling import MechanicsScheduler
from enginebay.scheduling._bounds import Bounds
from enginebay.scheduling._record import Record
from mutants.patching import Patch

__all__ = ["MUTANTS"]


def prefix_is_published_when_scheduled(patch: Patch) -> None:
    """Blocks can be found as soon as a step that will write them is sent, not when it was acknowledged."""

    def schedule(self: MechanicsScheduler[Any]) -> Any:
        output = original(self)
        step = self._state.in_flight.get(output.step)
        for record in step.records if step is not None else ():
            self._state.kv.publish(record.sequence, min(record.num_computed, record.num_tokens))
        return output

    original = patch(MechanicsScheduler, "schedule", schedule)


def salt_is_no_part_of_a_blocks_name(patch: Patch) -> None:
    """Requests of different salts share blocks."""
    import enginebay.kvcache._names as module

    def root(salt: str, adapter: str, weights: str) -> bytes:
        found: bytes = original("", adapter, weights)
        return found

    original = patch(module, "_root", root)


def blocks_leak_when_a_request_is_cancelled(patch: Patch) -> None:
    """An aborted request that runs keeps its blocks for ever."""

    def finish(self: MechanicsScheduler[Any], record: Record, reason: FinishReason) -> None:
        blocks = list(record.sequence.blocks) if reason is FinishReason.ABORT and not record.in_flight else []
        for block in blocks:
            self._state.kv.pool._refs[block] += 1
        original(self, record, reason)

    original = patch(MechanicsScheduler, "_finish", finish)


def blocks_are_freed_under_a_step_in_flight(patch: Patch) -> None:
    """An ended request's blocks are handed out while a step that may write to them is on its way."""

    def finish(self: MechanicsScheduler[Any], record: Record, reason: FinishReason) -> None:
        original(self, record, reason)
        if record.in_flight:
            self._state.kv.close(record.sequence)

    original = patch(MechanicsScheduler, "_finish", finish)


def shared_blocks_stay_on_the_free_list(patch: Patch) -> None:
    """A cached block that somebody takes is handed out to the next all the same."""

    def share(self: BlockPool, blocks: Any) -> None:
        free = [block for block in blocks if self._refs[block] == 0]
        original(self, blocks)
        for block in free:
            self._free.append(block)

    original = patch(BlockPool, "share", share)


def blocks_are_named_one_too_early(patch: Patch) -> None:
    """A block is published when all of its tokens but the last are computed."""

    def publish(self: KVCacheManager, sequence: Any, num_computed_tokens: int) -> None:
        original(self, sequence, min(num_computed_tokens + 1, sequence.num_tokens, sequence.capacity))

    original = patch(KVCacheManager, "publish", publish)
    patch(MechanicsScheduler, "update_from_output", _eager_update(MechanicsScheduler.update_from_output))


def _eager_update(update: Any) -> Any:
    def eager(self: MechanicsScheduler[Any], scheduler_output: Any, committed: Any) -> None:
        update(self, scheduler_output, committed)
        for record in self._state.running.values():
            self._state.kv.publish(record.sequence, record.num_acked)

    return eager


def preemption_loses_the_output(patch: Patch) -> None:
    """A victim begins again at its prompt."""
    import enginebay.scheduling._eviction as module

    def preempt(state: Any, record: Record, draft: Any = None) -> None:
        original(state, record, draft)
        record.output.clear()
        record.expected = len(record.request.prompt_token_ids)

    original = patch(module, "preempt", preempt)


def preemption_keeps_what_was_computed(patch: Patch) -> None:
    """A victim that runs again is not computed again, though its blocks are gone."""
    import enginebay.scheduling._draft as module

    def resumed(record: Record) -> Any:
        record.num_computed = max(record.num_computed, record.num_tokens - 1)
        return original(record)

    original = patch(module, "_resumed", resumed)


def budget_is_over_by_one(patch: Patch) -> None:
    """A step holds one token more than it may."""

    def join(cls: type[Bounds], *args: Any) -> Bounds:
        bounds: Bounds = original(*args)
        return replace(bounds, tokens=bounds.tokens + 1)

    original = patch(Bounds, "join", classmethod(join))


def token_that_never_came_is_not_computed_again(patch: Patch) -> None:
    """A step that had to draw and did not leaves its request where it would be with all that it could have drawn."""
    patch(MechanicsScheduler, "_roll_back", lambda self, record: None)


MUTANTS = (
    prefix_is_published_when_scheduled,
    salt_is_no_part_of_a_blocks_name,
    blocks_leak_when_a_request_is_cancelled,
    blocks_are_freed_under_a_step_in_flight,
    shared_blocks_stay_on_the_free_list,
    blocks_are_named_one_too_early,
    preemption_loses_the_output,
    preemption_keeps_what_was_computed,
    budget_is_over_by_one,
    token_that_never_came_is_not_computed_again,
)

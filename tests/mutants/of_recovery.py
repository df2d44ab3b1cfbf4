"""Mutants of the core's dealings with workers: which replies count, and what a void leaves behind."""

from __future__ import annotations

from typing import Any

import msgspec

from enginebay.engine.execution import Execution
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.ledger import Row
from enginebay.engine.pipeline import Pipeline
from enginebay.engine.rebirth import Rebirth
from enginebay.engine.requests import Requests
from enginebay.engine.watch import WorkerWatch
from mutants.patching import Patch

__all__ = ["MUTANTS"]


def generation_of_a_reply_is_not_checked(patch: Patch) -> None:
    """An answer that says it is of an earlier generation is taken for this one's."""

    def blind(self: Execution, replies: Any, pending: Any, flight: Any) -> Any:
        return result(self, msgspec.structs.replace(replies, generation=flight.generation), pending, flight)

    result = patch(Execution, "_result", blind)


def call_id_of_a_reply_is_not_checked(patch: Patch) -> None:
    """An answer to another call of the same step is taken for the answer to this one."""

    def blind(self: Execution, replies: Any, pending: Any, flight: Any) -> Any:
        return result(self, msgspec.structs.replace(replies, call_id=pending.call_id), pending, flight)

    result = patch(Execution, "_result", blind)


def step_of_a_reply_is_not_checked(patch: Patch) -> None:
    """What a worker says of another step is taken for this one's."""
    import enginebay.engine.execution as module

    def blind(*args: Any, **kwargs: Any) -> Any:
        return msgspec.structs.replace(step_result(*args, **kwargs), step=-1)

    step_result = patch(module, "step_result", blind)


def prefix_index_is_kept_over_a_void(patch: Patch) -> None:
    """The blocks of the generation before can still be found, on workers that have dropped them."""

    def renew(self: GuardedScheduler) -> None:
        state = self._scheduler._state  # type: ignore[attr-defined]  # the simulation's are all of the mechanics
        pool = state.kv._pool
        for block, refs in enumerate(list(pool._refs)):
            for _ in range(refs):
                pool.give_back([block])
        original(self)
        self._scheduler._state.kv._pool = pool  # type: ignore[attr-defined]  # see above

    original = patch(GuardedScheduler, "renew", renew)


def tokens_ahead_are_kept_over_a_void(patch: Patch) -> None:
    """Tokens that the dropped steps would have drawn still count as on their way."""

    def void(self: Requests, *args: Any) -> Any:
        expected = {live.row.request_id: live.expected for live in self._live}
        requests = original(self, *args)
        for live in self._live:
            live.expected = expected[live.row.request_id]
        return requests

    original = patch(Requests, "void", void)


def generation_is_not_raised_at_a_void(patch: Patch) -> None:
    """Workers are not told that what they hold is void."""

    def void(self: Rebirth, *args: Any) -> None:
        original(self, *args)
        self._parts.generation.current -= 1

    original = patch(Rebirth, "_void", void)


def steps_in_flight_outlive_a_void(patch: Patch) -> None:
    """The steps after the failed one are still waited for."""

    def drop(self: Pipeline, error: Exception, **kwargs: Any) -> Any:
        kept = list(self.in_flight)[1:]
        dropped = original(self, error, **kwargs)
        self.in_flight.extend(kept)
        return dropped

    original = patch(Pipeline, "drop", drop)


def refill_forgets_what_was_committed(patch: Patch) -> None:
    """A fresh scheduler is given the prompt alone."""

    def request(self: Row) -> Any:
        return msgspec.structs.replace(original(self), committed_token_ids=())

    original = patch(Row, "request", request)


def refill_is_in_another_order(patch: Patch) -> None:
    """A fresh scheduler gets the requests last come first."""

    def void(self: Requests, *args: Any) -> Any:
        return original(self, *args)[::-1]

    original = patch(Requests, "void", void)


def refill_draws_another_seed(patch: Patch) -> None:
    """The effective seed of a request does not outlive a void."""

    def request(self: Row) -> Any:
        return msgspec.structs.replace(original(self), seed=self.seed + 1)

    original = patch(Row, "request", request)


def refill_forgets_the_choice(patch: Patch) -> None:
    """All choices of a request draw as the first one after a void."""

    def request(self: Row) -> Any:
        return msgspec.structs.replace(original(self), choice=0)

    original = patch(Row, "request", request)


def answer_is_committed_twice(patch: Patch) -> None:
    """A step that was committed stays in the queue of steps in flight."""

    def finish(self: Pipeline, flight: Any, *counts: int) -> None:
        original(self, flight, *counts)
        self.in_flight.appendleft(flight)

    original = patch(Pipeline, "finish", finish)


def deaths_are_remembered_after_a_respawn(patch: Patch) -> None:
    """The death of the old worker counts for the new one."""
    patch(WorkerWatch, "expect", lambda self, incarnations: None)


def late_report_of_a_death_counts(patch: Patch) -> None:
    """What is told of a worker that was given up long ago costs the one that took its place its life."""

    def expect(self: WorkerWatch, incarnations: Any) -> None:
        original(self, incarnations)
        self._expected = None

    original = patch(WorkerWatch, "expect", expect)


MUTANTS = (
    generation_of_a_reply_is_not_checked,
    call_id_of_a_reply_is_not_checked,
    step_of_a_reply_is_not_checked,
    prefix_index_is_kept_over_a_void,
    tokens_ahead_are_kept_over_a_void,
    generation_is_not_raised_at_a_void,
    steps_in_flight_outlive_a_void,
    refill_forgets_what_was_committed,
    refill_is_in_another_order,
    refill_draws_another_seed,
    refill_forgets_the_choice,
    answer_is_committed_twice,
    deaths_are_remembered_after_a_respawn,
    late_report_of_a_death_counts,
)

"""The schedulers' suite catches broken schedulers: each fault by the test that is there for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from enginebay.interfaces import (
    NoOptions,
    Policy,
    RequestView,
    Scheduler,
    SchedulerCapabilities,
    SchedulerContext,
    SchedulerPlugin,
)
from enginebay.messages import Committed, EngineRequest, FinishReason, SchedulerOutput, SchedulerStats
from enginebay.scheduling import MechanicsScheduler, _line
from enginebay.testing import SchedulerSuite
from support.loop import Arrival

Context = SchedulerContext[NoOptions]


class Whole(Scheduler[NoOptions]):
    """A whole scheduler by delegation; the tests break one method each."""

    def __init__(self, context: Context, policy: type[Policy[NoOptions]] = Arrival) -> None:
        super().__init__(context)
        self.inner = MechanicsScheduler(policy(context), context)

    def add_request(self, request: EngineRequest) -> None:
        self.inner.add_request(request)

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        self.inner.finish_requests(request_ids, status)

    def schedule(self) -> SchedulerOutput:
        return self.inner.schedule()

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        self.inner.update_from_output(scheduler_output, committed)

    def preempt_all(self) -> None:
        self.inner.preempt_all()

    def has_requests(self) -> bool:
        return self.inner.has_requests()

    def make_stats(self) -> SchedulerStats:
        return self.inner.make_stats()


class Forgetful(Whole):
    """Loses a request."""

    def add_request(self, request: EngineRequest) -> None:
        if request.arrival_number != 5:
            super().add_request(request)

    def has_requests(self) -> bool:
        return True


class Deaf(Whole):
    """Does not hear of aborts."""

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        pass


class Choiceless(Whole):
    """Does not say which choice it is."""

    def add_request(self, request: EngineRequest) -> None:
        super().add_request(msgspec.structs.replace(request, choice=0))


class Reusing(Whole):
    """Takes what is cached, whoever asks."""

    def add_request(self, request: EngineRequest) -> None:
        params = msgspec.structs.replace(request.params, prompt_logprobs=None)
        super().add_request(msgspec.structs.replace(request, params=params))


class Leaky(Whole):
    """Keeps a block for itself each time that something is added."""

    def add_request(self, request: EngineRequest) -> None:
        super().add_request(request)
        if self.context.kv_cache.num_free_blocks > 1:
            self.context.kv_cache.pool.take(1)


class Overdrawn(Whole):
    """Takes the budget for a suggestion."""

    def __init__(self, context: Context) -> None:
        limits = replace(context.limits, max_num_batched_tokens=10_000, max_num_seqs=10_000)
        super().__init__(replace(context, limits=limits))


class Unbound(Whole):
    """Does not read what the runner can take."""

    def __init__(self, context: Context) -> None:
        super().__init__(replace(context, constraints=type(context.constraints)()))


class Fickle(Whole):
    """Calls itself deterministic, and is not."""

    made = 0

    def __init__(self, context: Context) -> None:
        type(self).made += 1
        super().__init__(context, Newest if self.made % 2 else Arrival)


class Forgiving(Whole):
    """Says that nobody is there."""

    def make_stats(self) -> SchedulerStats:
        return SchedulerStats(num_running=1)


class Hasty(Whole):
    """Gives blocks back while the step that writes to them is in flight."""

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        state = self.inner._state
        records = [state.requests[request_id] for request_id in request_ids if request_id in state.requests]
        super().finish_requests(request_ids, status)
        for record in records:
            if record.sequence.blocks:
                self.context.kv_cache.free(record.sequence)


class Newest(Arrival):
    def key(self, request: RequestView) -> tuple[int]:
        return (-request.arrival_number,)


class Sharing(Whole):
    """Lets blocks be found before the step that computes them is acknowledged."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        for new in output.new:
            sequence = self.inner._state.running[new.request_id].sequence
            self.context.kv_cache.publish(sequence, min(sequence.capacity, sequence.num_tokens))
        return output


def run(factory: Callable[[Context], Any], test: str, *, overlap: bool = False) -> None:
    plugin = SchedulerPlugin(
        name="broken",
        options=NoOptions,
        factory=factory,
        capabilities=SchedulerCapabilities(deterministic_order=True, overlap_safe=overlap),
    )
    suite = SchedulerSuite()
    arguments = {"favoured": "shorter"} if test == "test_nobody_starves" else {}
    getattr(suite, test)((plugin, NoOptions()), **arguments)


@pytest.mark.parametrize(
    ("factory", "test", "message"),
    [
        (Forgetful, "test_each_request_finishes_once_within_all_bounds", "unfinished are"),
        (Deaf, "test_abort_takes_effect_at_once", "something ran on"),
        (Leaky, "test_preempt_all_keeps_what_was_put_out", "blocks are still held"),
        (Overdrawn, "test_each_request_finishes_once_within_all_bounds", "and the bound is"),
        (Unbound, "test_constraint_on_mixing_is_kept_by_any_order", "and the bound is 1"),
        (Fickle, "test_same_inputs_same_schedule", "was scheduled in two ways"),
        (Forgiving, "test_longest_admitted_request_finishes_alone", "nothing is left, and the statistics say"),
        (Choiceless, "test_what_a_request_says_of_itself_reaches_the_runner", "not told which choice"),
        (Reusing, "test_what_a_request_says_of_itself_reaches_the_runner", "12 tokens of it are not computed"),
    ],
)
def test_each_fault_is_caught(factory: Callable[[Context], Any], test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(factory, test)


@pytest.mark.parametrize("factory", [Hasty, Sharing])
def test_blocks_that_pass_on_too_early_are_caught(factory: Callable[[Context], Any]) -> None:
    with pytest.raises(AssertionError, match="are handed out while a step in flight may still write to them"):
        run(factory, "test_steps_in_flight_lose_and_repeat_nothing", overlap=True)


def test_starvation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shortest(Arrival):
        def key(self, request: RequestView) -> tuple[int]:
            return (request.num_prompt_tokens,)

    run(Shortest, "test_nobody_starves")
    monkeypatch.setattr(_line, "STARVATION_BOUND", 1 << 60)
    with pytest.raises(AssertionError, match="r0 still waits after 10000 shorter requests came after it"):
        run(Shortest, "test_nobody_starves")


def test_a_sound_whole_scheduler_passes() -> None:
    for test in [name for name in dir(SchedulerSuite) if name.startswith("test_")]:
        run(Whole, test, overlap=True)

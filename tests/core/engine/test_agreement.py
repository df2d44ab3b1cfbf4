"""What the engines of a world's ranks agree on, and how their schedules are compared: ranks are threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from enginebay.engine.agreement import Agreement
from enginebay.engine.startup.agreed import fewest_blocks
from enginebay.engine.startup.budget import BlockBudget
from enginebay.errors import EnginebayError, EngineDead, StartFailed, WorkerFailed, WorkerHung, WorkerLost
from enginebay.messages import NewRequest, RunningRequest, SamplingParams, SchedulerOutput
from enginebay.runtime import Entropy, system_runtime
from support.fake_engine import FakeEngine

SAME = "every rank must be given the same requests, in the same order, between the same steps"
BUDGET = BlockBudget(num_blocks=64, reserved_blocks=1, why="[cache] num_blocks")
CLOCK = system_runtime().clock


class Table:
    """Where threads meet as ranks do; ``late`` ranks never come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.names: list[str] = []
        self._told: dict[tuple[int, int], bytes] = {}
        self._numbers = [0] * size
        self._changed = threading.Condition()

    def exchange(self, rank: int) -> Callable[[str, bytes, float], tuple[bytes, ...]]:
        def exchange(name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
            with self._changed:
                number = self._numbers[rank]
                self._numbers[rank] += 1
                self._told[number, rank] = value
                if rank == 0:
                    self.names.append(name)
                self._changed.notify_all()
                for other in range(self.size):
                    if not self._changed.wait_for(lambda o=other: (number, o) in self._told, deadline - CLOCK.now()):
                        raise TimeoutError(f"rank {other} has not come to compare its {name}")
                return tuple(self._told[number, other] for other in range(self.size))

        return exchange


def together(size: int, body: Callable[[Agreement, int], Any], *, every: int = 3, timeout: float = 30.0) -> list[Any]:
    """What ``body`` came to on each rank: its result, or its error."""
    table = Table(size)
    came: list[Any] = [None] * size

    def run(rank: int) -> None:
        agreement = Agreement(table.exchange(rank), CLOCK, rank=rank, every=every, timeout=timeout)
        try:
            came[rank] = body(agreement, rank)
        except EnginebayError as error:
            came[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came


def decode(step: int, *, tokens: int = 1, requests: int = 1, generation: int = 0) -> SchedulerOutput:
    """A step that goes on with what ran before."""
    ids = [f"r{index}" for index in range(requests)]
    return SchedulerOutput(
        step=step,
        generation=generation,
        running=tuple(RunningRequest(request_id=one, num_computed_tokens=step) for one in ids),
        num_scheduled_tokens=dict.fromkeys(ids, tokens),
    )


def begin(step: int, token_id: int = 1, seed: int = 0) -> SchedulerOutput:
    """A step that admits a request."""
    new = NewRequest(
        request_id=f"r{step}",
        token_ids=(token_id, 2),
        num_prompt_tokens=2,
        params=SamplingParams(),
        seed=seed,
        block_ids=((0,),),
        num_computed_tokens=0,
    )
    return SchedulerOutput(step=step, new=(new,), num_scheduled_tokens={new.request_id: 2})


def messages(came: list[Any]) -> list[str]:
    assert all(isinstance(one, EngineDead) for one in came), came
    return [str(one) for one in came]


def test_all_ranks_have_the_seeds_of_rank_0() -> None:
    deadline = CLOCK.now() + 30
    opened = together(3, lambda one, rank: one.open(Entropy(rank), {"a": "1"}, deadline))
    drawn = [entropy.stream("seeds").getrandbits(63) for entropy in opened]
    assert drawn == drawn[:1] * 3
    assert drawn[0] == together(1, lambda one, rank: one.open(Entropy(0), {}, deadline))[0].stream("seeds").getrandbits(
        63
    )


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (
            [{"[model] dtype": "float32"}, {"[model] dtype": "bfloat16"}],
            "the ranks do not agree on [model] dtype: it is float32 on rank 0, and bfloat16 on rank 1",
        ),
        ([{"a": "1"}, {"a": "1", "b": "2"}], "the ranks do not agree on b: it is unset on rank 0, and 2 on rank 1"),
        ([{"a": "1"}, {}], "the ranks do not agree on a: it is 1 on rank 0, and unset on rank 1"),
    ],
)
def test_terms_that_differ_are_named_on_every_rank(terms: list[dict[str, str]], message: str) -> None:
    came = together(2, lambda one, rank: one.open(Entropy(0), terms[rank], CLOCK.now() + 30))
    assert all(isinstance(one, StartFailed) for one in came)
    assert [str(one) for one in came] == 2 * [f"{message}: start every rank with the same config and the same packages"]


def test_the_fewest_blocks_count() -> None:
    counts = [64, 48, 50]
    came = together(3, lambda one, rank: fewest_blocks(one, replace(BUDGET, num_blocks=counts[rank]), 30.0))
    assert [one.num_blocks for one in came] == [48] * 3
    others = "the fewest of all ranks: those of rank 1"
    assert [one.why for one in came] == [others, BUDGET.why, others]


def test_the_most_reserved_blocks_count() -> None:
    came = together(2, lambda one, rank: fewest_blocks(one, replace(BUDGET, reserved_blocks=rank), 30.0))
    assert [(one.num_blocks, one.reserved_blocks) for one in came] == 2 * [(64, 1)]


def test_schedules_are_compared_every_so_many_steps_and_where_a_batch_changes() -> None:
    names: list[list[str]] = []
    for steps in ([decode(0), decode(1)], [decode(0), decode(1), decode(2)], [begin(0)], [SchedulerOutput(step=0)] * 2):
        table = Table(1)
        agreement = Agreement(table.exchange(0), CLOCK, rank=0, every=3, timeout=30.0)
        for step in steps:
            agreement.note(step)
        names.append(table.names)
    assert names == [[], ["schedules"], ["schedules"], []]


def test_a_finished_request_alone_waits_for_the_next_step() -> None:
    """Its step computes nothing, so no collective of it can go wrong."""
    table = Table(1)
    agreement = Agreement(table.exchange(0), CLOCK, rank=0, every=3, timeout=30.0)
    agreement.note(SchedulerOutput(step=0, finished=("r",)))
    assert table.names == []
    agreement.note(msgspec.structs.replace(decode(1), finished=("r",)))
    assert table.names == ["schedules"]


def test_what_rests_is_compared_once() -> None:
    table = Table(1)
    agreement = Agreement(table.exchange(0), CLOCK, rank=0, every=3, timeout=30.0)
    agreement.note(decode(0))
    agreement.rest()
    agreement.rest()
    assert table.names == ["schedules"]


def test_time_is_rank_0s_and_moves_with_comparisons() -> None:
    def body(one: Agreement, rank: int) -> list[float]:
        times = [one.now]
        for step in range(6):
            one.note(decode(step))
            times.append(one.now)
        return times

    came = together(2, body)
    assert came[0] == came[1]
    assert came[0][:3] == [0.0] * 3
    assert 0.0 < came[0][3] == came[0][5] < came[0][6]


@pytest.mark.parametrize(
    ("mine", "theirs", "difference"),
    [
        (
            [decode(0), decode(1), decode(2)],
            [decode(0), decode(1, tokens=2), decode(2)],
            "differ from step 1 on: rank 0 ran 1 token of 1 request, and rank 1 2 tokens of 1 request",
        ),
        (
            [decode(0), decode(1), decode(2, requests=2)],
            [decode(0), decode(1), decode(2)],
            "differ from step 2 on: rank 0 ran 2 tokens of 2 requests, and rank 1 1 token of 1 request",
        ),
        (
            [begin(0, token_id=1)],
            [begin(0, token_id=3)],
            "differ from step 0 on: ranks 0 and 1 ran 2 tokens of 1 request each, and not the same",
        ),
        (
            [begin(0, seed=1)],
            [begin(0, seed=2)],
            "differ from step 0 on: ranks 0 and 1 ran 2 tokens of 1 request each, and not the same",
        ),
        (
            [decode(0, generation=1)] * 3,
            [decode(0)] * 3,
            "differ from step 0 on: ranks 0 and 1 ran 1 token of 1 request each, and not the same",
        ),
        (
            [decode(0), decode(1), decode(2)],
            [decode(0), begin(1)],
            "differ from step 1 on: rank 0 ran 1 token of 1 request, and rank 1 2 tokens of 1 request",
        ),
    ],
)
def test_the_first_step_that_differs_is_named_on_every_rank(  # X17
    mine: list[SchedulerOutput], theirs: list[SchedulerOutput], difference: str
) -> None:
    def body(one: Agreement, rank: int) -> None:
        for step in (mine, theirs)[rank]:
            one.note(step)

    assert messages(together(2, body)) == 2 * [f"the engine stopped: the schedules of the ranks {difference}: {SAME}"]


def test_a_rank_that_runs_fewer_steps_is_named() -> None:
    def body(one: Agreement, rank: int) -> None:
        for step in range(2 if rank else 3):
            one.note(decode(step))
        one.rest()

    told = "differ from step 2 on: rank 0 ran 1 token of 1 request, and rank 1 no such step"
    assert messages(together(2, body)) == 2 * [f"the engine stopped: the schedules of the ranks {told}: {SAME}"]


def test_ranks_that_compute_the_same_with_different_weights_are_stopped() -> None:  # X17
    came = together(2, lambda one, rank: one.note(begin(0), ["the model's own", "/new (version '2')"][rank]))
    assert all(isinstance(one, EngineDead) for one in came)
    assert messages(came) == 2 * [
        "the engine stopped: the ranks have different weights: rank 0 the model's own, and rank 1 /new (version '2'): "
        + SAME
    ]


def test_steps_are_counted_on_after_a_comparison() -> None:
    def body(one: Agreement, rank: int) -> None:
        for step in range(6):
            one.note(decode(step, tokens=2 if (step, rank) == (4, 2) else 1))

    told = "differ from step 4 on: rank 0 ran 1 token of 1 request, and rank 2 2 tokens of 1 request"
    assert messages(together(3, body)) == 3 * [f"the engine stopped: the schedules of the ranks {told}: {SAME}"]


def test_a_rank_that_does_not_come_is_waited_for_so_long() -> None:
    def body(one: Agreement, rank: int) -> None:
        for step in range(0 if rank else 3):
            one.note(decode(step))

    came, _ = together(2, body, timeout=0.05)
    assert isinstance(came, WorkerHung)
    assert str(came) == (
        "rank 0 ran steps 0 to 2, and within 0.05 s ([deadlines] step) rank 1 has not come to compare its schedules: "
        f"{SAME}"
    )


def test_a_failed_step_is_told_by_the_difference_that_it_came_from() -> None:
    def body(one: Agreement, rank: int) -> EnginebayError:
        one.note(decode(0))
        one.note(decode(1, tokens=1 + rank))
        return one.cause_of(WorkerFailed("a collective failed"), 30.0)

    told = "differ from step 1 on: rank 0 ran 1 token of 1 request, and rank 1 2 tokens of 1 request"
    assert messages(together(2, body)) == 2 * [f"the engine stopped: the schedules of the ranks {told}: {SAME}"]


def test_a_failed_step_without_a_difference_is_its_own_cause() -> None:
    error = WorkerFailed("no memory")

    def agreeing(one: Agreement, rank: int) -> EnginebayError:
        one.note(decode(0))
        return one.cause_of(error, 30.0)

    assert together(2, agreeing) == [error, error]
    assert together(2, lambda one, rank: one.cause_of(error, 0.0)) == [error, error]  # nothing was left to compare


@pytest.mark.parametrize(("failed", "kind"), [(WorkerFailed, WorkerLost), (WorkerHung, WorkerHung)])
def test_a_rank_that_does_not_come_after_a_failed_step_is_lost(failed: type[Any], kind: type[Any]) -> None:
    def body(one: Agreement, rank: int) -> EnginebayError | None:
        if rank:
            return None
        one.note(decode(0))
        return one.cause_of(failed("closed by peer"), 0.02)

    came, _ = together(2, body)
    assert type(came) is kind
    assert str(came) == "rank 1 has not come to compare its schedules, and a step failed here: closed by peer"


def test_a_rank_that_has_left_is_no_cause() -> None:
    def gone(name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        raise WorkerLost("the engine of rank 1 has ended")

    agreement, error = Agreement(gone, CLOCK, rank=0, every=3, timeout=1.0), WorkerFailed("a collective failed")
    agreement.note(decode(0))
    assert agreement.cause_of(error, 1.0) is error


@pytest.mark.parametrize("raised", [RuntimeError("the line is gone"), SystemExit(3), TypeError()])
def test_an_exchange_that_fails_is_no_cause(raised: BaseException) -> None:
    """What is looked for is what a failed step came from: that nobody can be asked says nothing of it."""

    def exchange(name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        raise raised

    agreement = Agreement(exchange, CLOCK, rank=0, every=100, timeout=1.0)
    agreement.note(SchedulerOutput(step=0))
    failed = WorkerLost("rank 1: the worker ended (signal 9)")
    assert agreement.cause_of(failed, 1.0) is failed


@pytest.mark.parametrize("answer", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"first": "x"})])
def test_what_cannot_be_read_names_the_rank(answer: bytes) -> None:
    agreement = Agreement(lambda name, value, by: (value, answer), CLOCK, rank=0, every=1, timeout=1.0)
    with pytest.raises(EngineDead, match=r"^the engine stopped: what rank 1 told as its schedules cannot be read: "):
        agreement.note(decode(0))


class Alone:
    """The agreement of an engine whose peers all say what it says; it can be told that they do not."""

    def __init__(self, every: int = 100) -> None:
        self.told: list[_Told] = []
        self.difference = False
        self.agreement = Agreement(self._exchange, CLOCK, rank=0, every=every, timeout=1.0)

    def _exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        told = msgspec.msgpack.decode(value, type=_Told)
        self.told.append(told)
        other = msgspec.structs.replace(told, steps=told.steps[:-1]) if self.difference else told
        return value, msgspec.msgpack.encode(other)


class _Told(msgspec.Struct):
    first: int
    steps: list[Any]
    now: float
    weights: str


def test_an_engine_compares_where_a_batch_changes_and_when_it_rests() -> None:
    alone = Alone()
    engine = FakeEngine(agreement=alone.agreement)
    engine.add("a", max_tokens=4)
    engine.add("b", max_tokens=6)
    engine.run()
    assert [(told.first, len(told.steps)) for told in alone.told] == [(0, 1), (1, 4), (5, 1)]  # both, one left, rest


def test_who_ended_last_is_told_with_what_comes_next() -> None:
    """A step of its own would come, or not, as each rank's client is slow or fast."""
    engine = FakeEngine(agreement=Alone().agreement)
    engine.add("a", max_tokens=2)
    engine.run()
    assert not engine.core.has_work()
    engine.add("b", max_tokens=2)
    engine.run()
    assert [(step.step, len(step.new), step.finished) for step in engine.executor.steps] == [
        (0, 1, ()),
        (1, 0, ()),
        (2, 1, ("a",)),
        (3, 0, ()),
    ]


@pytest.mark.parametrize(("num_stages", "depth"), [(1, 1), (1, 2), (2, 3), (3, 4)])
@pytest.mark.parametrize("most", [1, 16], ids=["length", "end"])
def test_requests_that_come_while_the_last_steps_are_in_flight_change_no_schedule(
    num_stages: int, depth: int, most: int
) -> None:  # X17
    """One rank's client asks again before the steps that were sent for nobody are done, another's after them."""
    came = []
    for late in (False, True):
        alone = Alone()
        engine = FakeEngine(agreement=alone.agreement, num_stages=num_stages, depth=depth)
        for num in range(4):
            engine.add(f"a{num}", "abcdefgh"[: 2 + num], max_tokens=most + num)
        while engine.core.num_unfinished:
            engine.core.step()
        while late and engine.core.has_work():
            engine.core.step()
        asked = False

        def again(engine: FakeEngine = engine) -> None:
            nonlocal asked
            if not asked:
                engine.add("b", max_tokens=3)
            asked = True

        if engine.core.has_work():
            engine.core.step(again)
        again()
        while engine.core.has_work():
            engine.core.step()
        came.append((engine.executor.steps, [(told.first, len(told.steps)) for told in alone.told]))
    assert came[0] == came[1]


def test_an_engine_dies_of_a_difference_before_the_step_runs() -> None:
    alone = Alone()
    alone.difference = True
    engine = FakeEngine(agreement=alone.agreement)
    engine.add("a", max_tokens=2)
    told = "differ from step 0 on: rank 0 ran 2 tokens of 1 request, and rank 1 no such step"
    with pytest.raises(EngineDead) as caught:
        engine.core.step()
    assert str(caught.value) == f"the engine stopped: the schedules of the ranks {told}: {SAME}"
    assert engine.executor.steps == []


def test_a_step_that_fails_once_is_the_end_and_is_told_by_the_difference() -> None:
    alone = Alone()
    engine = FakeEngine(agreement=alone.agreement, max_failed_steps=1)
    engine.add("a", max_tokens=5)
    engine.core.step()

    def fail(output: SchedulerOutput) -> None:
        alone.difference = True
        raise ValueError("a collective failed")

    engine.executor.before = fail
    told = "differ from step 1 on: rank 0 ran 1 token of 1 request, and rank 1 no such step"
    with pytest.raises(EngineDead) as caught:
        engine.core.step()
    assert str(caught.value) == f"the engine stopped: the schedules of the ranks {told}: {SAME}"

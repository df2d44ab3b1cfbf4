"""While a restart is waited for: aborts, deadlines, drains and the stop come at once, and no request waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from enginebay.engine.admission.admit import Ask
from enginebay.engine.desk import Do
from enginebay.engine.loop import Abort, Add, Command, EngineLoop, Stop
from enginebay.errors import EnginebayError
from enginebay.messages import ControlDone, Drain, FinishReason, RequestOutput, SamplingParams, Sleep, StopEngine
from enginebay.status.restarts import Ending, Restart
from support.mortal import Mortal, answered, deadly

WAIT = 60.0
LOST = "rank 0: it ended before it answered"


class Sink:
    """Where a request's outputs go, each with the time at which it came."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.text = ""
        self.end: tuple[float, FinishReason, str | None] | None = None
        self.error: tuple[float, str] | None = None

    def put(self, output: RequestOutput) -> None:
        self.text += output.text
        if output.finish_reason is not None:
            assert self.end is None
            self.end = self.now(), output.finish_reason, output.error

    def fail(self, error: EnginebayError) -> None:
        assert self.error is None
        self.error = self.now(), str(error)


class Waiting:
    """A loop in fake time, whose worker dies in its first step and is started again ``WAIT`` seconds later.

    ``commands`` come so many seconds after the loss. ``deaths``: the calls that the worker dies of, if not the first.
    """

    def __init__(
        self, commands: dict[float, Command | Callable[[], Command]], deaths: Collection[int] = (1,), **parts: Any
    ) -> None:
        self.engine = Mortal(requests={}, max_num_batched_tokens=64, **parts)
        deadly(self.engine, answered, set(deaths))
        clock, roster = self.engine.clock, self.engine.core._parts.roster
        self.lost_at = 0.0

        def once(ending: Ending) -> Restart:
            self.lost_at = clock.time
            return Restart(after=WAIT, number=1)

        roster._supervision.after = once  # type: ignore[method-assign]  # a long wait without a past
        self.loop = EngineLoop(self.engine.core)
        self.commands = sorted(commands.items())
        self.loop._ear = self  # type: ignore[assignment]  # where the loop waits, and time passes
        self.ended = False

    def receive(self, deadline: float) -> bytes | None:
        """The ring of the next command, if one comes by then."""
        clock = self.engine.clock
        if self.lost_at and self.commands and (at := self.lost_at + self.commands[0][0]) <= deadline:
            clock.time = max(clock.time, at)
            command = self.commands.pop(0)[1]
            self.loop._inbox.append(command() if callable(command) else command)
            return b""
        clock.time = max(clock.time, deadline)
        raise TimeoutError

    def add(self, request_id: str, prompt: str = "say:abcdef", timeout: float | None = None) -> Add:
        params = SamplingParams(max_tokens=9)
        ids = (256, *prompt.encode())
        ask = Ask(request_id=request_id, prompt_token_ids=ids, params=params, timeout=timeout)
        return Add(ask=ask, sink=Sink(self.now), operation="x")

    def now(self) -> float:
        """Seconds since the loss."""
        return self.engine.clock.time - self.lost_at

    def run(self, *adds: Add) -> None:
        self.loop._inbox.extend(adds)
        for _ in range(60):
            if self.loop._stopping:
                break
            self.loop.turn()


def sink(add: Add) -> Sink:
    assert isinstance(add.sink, Sink)
    return add.sink


def test_an_abort_comes_at_once_and_a_deadline_in_time() -> None:  # R7
    world = Waiting({})
    stays, leaves, expires = world.add("stays"), world.add("leaves"), world.add("expires", timeout=40.0)
    world.commands = [(7.0, Abort(request_id="leaves", sink=leaves.sink))]
    world.run(stays, leaves, expires)
    assert sink(leaves).end == (7.0, FinishReason.ABORT, None)
    assert sink(expires).end == (40.0, FinishReason.ERROR, "deadline")
    assert (sink(stays).text, sink(stays).end) == ("abcdef", (WAIT, FinishReason.STOP, None))
    again = {new.request_id for output in world.engine.seen if output.generation for new in output.new}
    assert again == {"stays"}


def test_a_request_that_comes_meanwhile_waits_with_the_others() -> None:
    world = Waiting({})
    first, late = world.add("first"), world.add("late")
    world.commands = [(30.0, late)]
    world.run(first)
    assert [sink(one).text for one in (first, late)] == ["abcdef", "abcdef"]


def test_a_request_that_comes_while_an_idle_engine_s_workers_start_waits_no_longer_than_they_do() -> None:
    world = Waiting({}, deaths=())
    late = world.add("late")
    world.commands = [(30.0, late)]
    world.engine.report()
    world.run()
    assert sink(late).end == (WAIT, FinishReason.STOP, None)


def test_an_engine_that_dies_meanwhile_starts_no_workers() -> None:
    world = Waiting({})
    first, late = world.add("first"), world.add("late")

    def breaks() -> Command:
        def refuses(request: object) -> None:
            raise ValueError("boom")

        world.engine.core._scheduler._scheduler.add_request = refuses  # type: ignore[method-assign]  # one that errs
        return late

    world.commands = [(9.0, breaks)]
    world.run(first)
    assert sink(first).error == (9.0, "scheduler 'fake' 1.0: add_request() raised ValueError: boom")
    assert world.engine.incarnations == 1


def test_a_drain_is_taken_at_once_and_answered_by_its_own_time() -> None:
    world = Waiting({})
    first, refused = world.add("first"), world.add("refused")
    short, long = Do(command=Drain(timeout=20.0)), Do(command=Drain(timeout=300.0))
    world.commands = [(5.0, short), (6.0, long), (7.0, refused)]
    answers: list[tuple[str, float, ControlDone]] = []
    for name, asked in (("short", short), ("long", long)):
        asked.answer.add_done_callback(lambda done, name=name: answers.append((name, world.now(), done.result())))  # type: ignore[misc]  # no type for a default
    world.run(first)
    assert sink(refused).error == (
        7.0,
        "the engine drains, and takes no new requests: ask again when it has resumed",
    )
    (_, at, done), (name, _, all_done) = answers
    assert (at, done.facts) == (25.0, {"unfinished": "1"})
    assert (name, all_done.facts, sink(first).text) == ("long", {"unfinished": "0"}, "abcdef")


def test_what_needs_workers_waits_and_what_comes_behind_it_too() -> None:
    world = Waiting({})
    sleep, drain = Do(command=Sleep()), Do(command=Drain(timeout=1.0))
    world.commands = [(5.0, sleep), (6.0, drain)]
    ends: list[float] = []
    for asked in (sleep, drain):
        asked.answer.add_done_callback(lambda done: ends.append(world.now()))
    world.run(world.add("first"))
    assert len(ends) == 2
    assert min(ends) >= WAIT


@pytest.mark.parametrize("how", [Stop(), Do(command=StopEngine())], ids=["stop", "command"])
def test_a_stop_ends_the_wait(how: Command) -> None:
    world = Waiting({9.0: how})
    first = world.add("first")
    world.run(first)
    assert sink(first).error == (9.0, "the engine is closed; make a new one")
    assert world.engine.incarnations == 1


@pytest.mark.parametrize("at", [0.0, 30.0])
def test_each_request_waits_for_workers_as_long_as_it_may_and_fails_alone(at: float) -> None:
    world = Waiting({}, recovery_timeout=25.0)
    first, late, last = world.add("first"), world.add("late"), world.add("last")
    world.commands = [(at, late), (50.0, last)]
    world.run(first)
    error = f"no worker was ready for 25 s ([deadlines] recovery): {LOST}"
    assert sink(first).end == (25.0, FinishReason.ERROR, error)
    assert sink(late).end == (at + 25.0, FinishReason.ERROR, error)
    assert (sink(last).text, sink(last).error) == ("abcdef", None)
    assert world.engine.incarnations == 2


def test_who_starts_workers_looks_after_them_meanwhile() -> None:  # R7
    engine = Mortal(recovery_timeout=100.0)
    engine.add("short", "say:x", ask={"timeout": 30.0})
    engine.add("long", "say:x")
    deadly(engine, answered, {2})
    left: list[list[str]] = []

    def starting() -> None:
        for seconds in (31.0, 100.0):
            engine.clock.time += seconds
            engine.watch.meanwhile()
            left.append([row.request_id for row in engine.core._requests.ledger])

    engine.in_respawn = starting
    engine.run()
    assert left == [["a", "b", "c", "long"], []]
    engine.watch.meanwhile()  # nobody listens any more
    assert {engine.last[one].error for one in ("a", "b", "c", "long")} == {
        f"no worker was ready for 100 s ([deadlines] recovery): {LOST}"
    }
    assert engine.last["short"].error == "deadline"

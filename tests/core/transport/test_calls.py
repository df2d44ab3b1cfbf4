"""Calls that wait for answers: however their end comes, each is answered for every rank that it asked, and once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from enginebay.messages import Envelope, Replies, WorkerFailure
from enginebay.transport import PendingCalls, calls

RANKS = (0, 1)


def envelope(call_id: int) -> Envelope:
    return Envelope(generation=1, call_id=call_id, payload=b"")


def failure(rank: int) -> WorkerFailure:
    return WorkerFailure(phase="test", error_type="EngineDead", message="gone", kind="EngineDead", rank=rank)


def answered(future: Future[Replies]) -> list[tuple[int, bool]]:
    """Each rank, and whether it is a failure that stands for its answer."""
    assert future.done()
    return [(reply.rank, reply.failure is not None) for reply in future.result().replies]


def at_line(number: int, act: Callable[[], object], then: Callable[[], object]) -> bool:
    """Do ``act``, with ``then`` in the middle of it, before its ``number``-th line; False when it has not so many."""
    left = number

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != calls.__file__:
            return None
        if event == "line":
            left -= 1
            if not left:
                sys.settrace(None)
                then()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return left <= 0


def test_a_call_is_answered_by_all_ranks() -> None:
    pending = PendingCalls(RANKS)
    future = pending.open(envelope(1))
    pending.answer(1, 1, 1, b"one")
    assert not future.done()
    pending.answer(1, 1, 1, b"again")
    pending.answer(0, 1, 1, b"zero")
    pending.answer(0, 1, 2, b"nobody asked")
    assert [reply.payload for reply in future.result().replies] == [b"zero", b"one"]
    assert pending.num_dropped == 2


def test_a_lost_rank_answers_what_waits_and_what_comes() -> None:  # X4
    pending = PendingCalls(RANKS)
    waits = pending.open(envelope(1))
    pending.answer(0, 1, 1, b"")
    pending.lose(1, failure(1))
    comes = pending.open(envelope(2))
    assert (answered(waits), comes.done()) == ([(0, False), (1, True)], False)
    pending.answer(0, 1, 2, b"")
    assert answered(comes) == [(0, False), (1, True)]


@pytest.mark.parametrize("method", ["open", "answer", "refuse", "lose", "close"])
def test_the_end_may_come_in_the_middle_of_anything_in_the_same_thread(method: str) -> None:  # X13
    """As when the collector of garbage ends an executor that nobody refers to: see that nothing stands, at no line."""
    number = 0
    while number := number + 1:
        pending = PendingCalls(RANKS)
        futures = [pending.open(envelope(1)), pending.open(envelope(2))]
        pending.answer(0, 1, 1, b"")
        acts: dict[str, Callable[[], object]] = {
            "open": lambda: futures.append(pending.open(envelope(3))),  # noqa: B023  # called at once
            "answer": lambda: pending.answer(1, 1, 1, b""),  # noqa: B023  # called at once
            "refuse": lambda: pending.refuse(1, 1, 1, failure(1)),  # noqa: B023  # called at once
            "lose": lambda: pending.lose(1, failure(1)),  # noqa: B023  # called at once
            "close": lambda: pending.close(failure),  # noqa: B023  # called at once
        }
        came: list[bool] = []
        doing = threading.Thread(
            target=lambda: came.append(at_line(number, acts[method], lambda: pending.close(failure))),  # noqa: B023  # joined below
            daemon=True,
        )
        doing.start()
        doing.join(60)
        assert not doing.is_alive(), f"it stands at line {number} of {method}"
        assert len(came) == 1, "it raised"
        if not came[0]:
            break
        assert [[rank for rank, _ in answered(future)] for future in futures] == [list(RANKS)] * len(futures)
    assert number > 2


def test_who_waits_looks_first() -> None:
    come = iter(RANKS)

    def look() -> bool:
        pending.answer(next(come), 1, 1, b"")
        return True

    pending = PendingCalls(RANKS, look)
    future = pending.open(envelope(1))
    assert not future.done()
    for _ in range(2):  # what is there is not looked for
        assert [reply.rank for reply in future.result(0).replies] == list(RANKS)


def test_a_look_in_vain_leaves_the_wait_as_it_was() -> None:
    looked: list[bool] = []

    def look() -> bool:
        looked.append(len(looked) < 2)  # of another call, at first
        return looked[-1]

    for pending in (PendingCalls(RANKS), PendingCalls(RANKS, look)):
        with pytest.raises(TimeoutError):
            pending.open(envelope(1)).result(0)
    assert looked == [True, True, False]

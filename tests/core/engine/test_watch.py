"""Whose death counts: reports come from any thread, early or late, and of workers that were given up long ago."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from enginebay.engine.watch import WorkerWatch
from enginebay.errors import WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import Replies
from enginebay.runtime import system_runtime


def exit_of(incarnation: str, rank: int = 0) -> WorkerExit:
    return WorkerExit(rank=rank, incarnation=incarnation)


def test_only_the_expected_workers_count() -> None:
    watch = WorkerWatch()
    watch.exited(exit_of("before"))
    watch.expect(("a", "b"))
    watch.raise_if_lost()
    watch.exited(exit_of("old"))
    watch.raise_if_lost()
    watch.exited(exit_of("b", rank=1))
    watch.exited(exit_of("a"))
    with pytest.raises(WorkerLost, match=r"^rank 1: the worker ended$"):
        watch.raise_if_lost()
    watch.expect(("c",))
    watch.raise_if_lost()
    assert not watch._exits, "each step looks through what is kept"


def test_a_late_report_of_an_old_worker_wakes_nobody_for_good() -> None:
    runtime, watch = system_runtime(seed=1), WorkerWatch()
    watch.expect(("new",))
    answer: Future[Replies] = Future()
    replies = Replies(generation=0, call_id=1, replies=())

    def happen() -> None:
        watch.exited(exit_of("old"))
        time.sleep(0.02)
        answer.set_result(replies)

    thread = threading.Thread(target=happen)
    thread.start()
    assert watch.wait(runtime, answer, runtime.clock.now() + 30) is replies
    thread.join()


def test_a_death_after_a_late_report_is_seen_at_once() -> None:
    runtime, watch = system_runtime(seed=1), WorkerWatch()
    watch.expect(("new",))

    def happen() -> None:
        watch.exited(exit_of("old"))
        time.sleep(0.02)
        watch.exited(exit_of("new"))

    thread = threading.Thread(target=happen)
    thread.start()
    begun = time.monotonic()
    with pytest.raises(WorkerLost):
        watch.wait(runtime, Future(), runtime.clock.now() + 60)
    thread.join()
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("answered", ["with the death", "after it", "before it"])
def test_of_an_only_worker_the_answer_is_heard_in_every_order(answered: str) -> None:
    """What stands for its answer says where it ended: it is that, and not the mere death, that is told."""
    runtime, watch = system_runtime(seed=1), WorkerWatch()
    watch.expect(("a",))
    answer: Future[Replies] = Future()
    replies = Replies(generation=0, call_id=1, replies=())
    seen = threading.Event()

    def happen() -> None:
        if answered == "before it":
            answer.set_result(replies)
        watch.exited(exit_of("a"))
        if answered == "after it":
            seen.wait(30)
        if not answer.done():
            answer.set_result(replies)

    def heard(lost: Callable[[], None] = watch.raise_if_lost) -> None:
        try:
            lost()
        finally:
            if watch._exits:
                seen.set()

    watch.raise_if_lost = heard  # type: ignore[method-assign]  # the waiter has seen the death before the answer
    thread = threading.Thread(target=happen)
    thread.start()
    assert watch.wait(runtime, answer, runtime.clock.now() + 30) is replies
    thread.join()


def test_of_an_only_worker_that_nobody_answers_for_the_death_is_told() -> None:
    runtime, watch = system_runtime(seed=1), WorkerWatch()
    watch.expect(("a",))
    watch.exited(exit_of("a"))
    with pytest.raises(WorkerLost, match=r"^rank 0: the worker ended$"):
        watch.wait(runtime, Future(), runtime.clock.now() + 30)

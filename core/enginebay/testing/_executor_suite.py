"""The conformance kit of executors: subclass it in your package's tests, and pytest runs all of it.

::

    from enginebay.testing import ExecutorSuite

    class TestMine(ExecutorSuite):
        name = "mine"                  # as in [executor] use
        options = {"ring_slots": 4}    # as in [executor.options]; optional

The worker runs a fake model. No test measures time: they wait for events, and ``patience`` bounds each wait.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

import pytest

from enginebay.errors import EnginebayError, StartFailed, WorkerFailed
from enginebay.interfaces import ExecutorCapabilities, Kind
from enginebay.messages import (
    Ack,
    DeviceReady,
    ExecuteModel,
    MemoryAvailable,
    ModelLoaded,
    PluginsLoaded,
    Replies,
    SchedulerOutput,
    Shutdown,
)
from enginebay.testing._executor_driver import START_CALLS, ExecutorDriver, token_of
from enginebay.testing._offer import offer, offer_executor_again
from enginebay.testing.fakes import FAKE_RUNNER

MakeDriver = Callable[..., ExecutorDriver]


class ExecutorSuite:
    """What every executor keeps. ``name`` is that of an installed executor with a world of one rank."""

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    patience: ClassVar[float] = 60.0

    @pytest.fixture
    def make(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDriver]:
        """Makes drivers; at the end it opens their gates and stops them."""
        offer(tmp_path / "offered", monkeypatch, Kind.RUNNER, FAKE_RUNNER, "enginebay.testing.fakes")
        made: list[ExecutorDriver] = []

        def make(name: str | None = None) -> ExecutorDriver:
            folder = tmp_path / f"driver{len(made)}"
            made.append(ExecutorDriver(name or self.name, folder, options=self.options, patience=self.patience))
            return made[-1]

        yield make
        for driver in made:
            driver.gate.touch()
            if driver.executor is not None:
                driver.stop()

    @pytest.fixture
    def driver(self, make: MakeDriver) -> ExecutorDriver:
        """One driver, not started."""
        return make()

    def test_the_start_is_answered_phase_by_phase(self, driver: ExecutorDriver) -> None:
        (worker,) = driver.start().workers
        assert (worker.rank, worker.incarnation) == (0, "kit-0-1")
        assert worker.pid > 0
        assert worker.host
        results = [driver.call(call) for call in START_CALLS]
        assert [type(result) for result in results] == [
            PluginsLoaded,
            DeviceReady,
            ModelLoaded,
            MemoryAvailable,
            Ack,
            Ack,
        ]
        driver.run_step()
        assert driver.executor is not None
        assert driver.executor.health().alive

    def test_start_and_stop_and_start_again(self, driver: ExecutorDriver) -> None:  # X13
        driver.ready()
        driver.run_step()
        driver.stop()
        driver.wait_until_closed()
        driver.stop()
        assert driver.executor is not None
        assert not driver.executor.health().alive
        if driver.plugin.capabilities.restartable:
            driver.generation += 1
            driver.ready()
            driver.run_step()
        assert driver.exits == []  # a stop that was asked for is no loss

    def test_stop_before_any_start(self, driver: ExecutorDriver) -> None:  # X13
        driver.stop()
        driver.stop()

    def test_stop_after_a_failed_start(self, driver: ExecutorDriver) -> None:  # X13
        with pytest.raises(StartFailed):
            driver.start(payload=b"\xc1 not a start payload")
        driver.stop()
        driver.stop()
        if driver.plugin.capabilities.restartable:
            driver.generation += 1
            driver.ready()
            driver.run_step()

    def test_a_failed_phase_is_told_and_the_stop_after_it_is_clean(self, driver: ExecutorDriver) -> None:  # X2, X13
        driver.start(runner_options={"fail_load": "the weights are torn"})
        driver.call(START_CALLS[0])
        driver.call(START_CALLS[1])
        with pytest.raises(
            WorkerFailed, match=r"rank 0 \(pid \d+, host .+\) failed in load_model: ValueError: the wei"
        ):
            driver.call(START_CALLS[2])
        driver.stop()
        driver.wait_until_closed()

    def test_a_failed_call_leaves_the_line_aligned(self, driver: ExecutorDriver) -> None:  # X2, X3
        driver.ready()
        for how, said in (
            (b"raise", "ValueError: the fake"),
            (b"exit", "SystemExit: the fake"),
            (b"raise", "asked to fail"),
        ):
            step, _ = driver.next_step(how)
            with pytest.raises(WorkerFailed, match=said) as caught:
                driver.call(step)
            assert "failed in execute_model" in str(caught.value)
            assert "_misbehave" in caught.value.remote_traceback
            driver.run_step()
        assert driver.exits == []

    def test_an_object_that_cannot_cross_is_refused_at_the_sender(self, driver: ExecutorDriver) -> None:  # X15
        driver.ready()
        for thing in (threading.Lock(), lambda: 0):
            call = ExecuteModel(scheduler_output=SchedulerOutput(step=0, annex={"kit": thing}))  # type: ignore[dict-item]  # the fault under test
            with pytest.raises(TypeError, match="ExecuteModel holds something that cannot cross to a worker"):
                driver.submit(call)
        driver.run_step()

    def test_answers_come_in_the_order_of_the_calls(self, driver: ExecutorDriver) -> None:
        driver.ready()
        order: list[int] = []
        futures: list[tuple[Future[Replies], int]] = []
        for number in range(50):
            step, token = driver.next_step(b"raise" if number % 7 == 3 else b"")
            future = driver.submit(step)
            future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]  # no type for a default
            futures.append((future, token))
        for number, (future, token) in enumerate(futures):
            if number % 7 == 3:
                with pytest.raises(WorkerFailed):
                    driver.results(future)
            else:
                assert token_of(driver.results(future)[0]) == token
        assert order == list(range(50))

    def test_submit_returns_while_the_worker_is_busy(self, driver: ExecutorDriver) -> None:  # NONBLOCK
        driver.ready()
        depth = max(1, self._capabilities(driver).max_in_flight)
        steps = [driver.next_step(b"hold") for _ in range(depth)]
        futures = [driver.submit(step) for step, _ in steps]
        # the worker is held until the gate opens, and all submits have returned before that
        assert not any(future.done() for future in futures)
        driver.gate.touch()
        assert [token_of(driver.results(future)[0]) for future in futures] == [token for _, token in steps]

    def test_a_late_reply_is_not_the_next_calls(self, driver: ExecutorDriver) -> None:  # X1
        driver.ready()
        late, _ = driver.next_step(b"hold")
        with pytest.raises(TimeoutError):
            driver.call(late, timeout=0.01)
        step, token = driver.next_step()
        future = driver.submit(step)
        driver.gate.touch()
        assert token_of(driver.results(future)[0]) == token
        driver.run_step()

    def test_stop_answers_what_is_pending(self, driver: ExecutorDriver) -> None:  # X13: also when the worker hangs
        driver.ready()
        futures = [driver.submit(driver.next_step(b"hold")[0]) for _ in range(2)]
        driver.stop(seconds=0.2)
        for future in futures:
            with pytest.raises(EnginebayError):
                driver.results(future)
        driver.gate.touch()
        driver.wait_until_closed()
        driver.stop()

    def test_a_call_after_the_stop_is_answered_with_an_error(self, driver: ExecutorDriver) -> None:
        driver.ready()
        driver.stop()
        with pytest.raises(EnginebayError):
            driver.results(driver.submit(driver.next_step()[0]))

    def test_shutdown_as_a_call_is_no_loss(self, driver: ExecutorDriver) -> None:
        driver.ready()
        assert driver.call(Shutdown()) == Ack()
        driver.wait_until_closed()
        driver.stop()
        assert driver.exits == []

    def test_dropping_the_last_reference_ends_the_worker(self, driver: ExecutorDriver) -> None:  # X13
        driver.ready()
        driver.run_step()
        driver.executor = None
        gc.collect()
        driver.wait_until_closed()

    def test_two_side_by_side(self, make: MakeDriver) -> None:
        first, second = make(), make()
        first.ready()
        second.ready()
        held, token = first.next_step(b"hold")
        future = first.submit(held)
        second.run_step()  # not held up by the other
        second.stop()
        first.gate.touch()
        assert token_of(first.results(future)[0]) == token

    def test_it_works_under_any_name(
        self, make: MakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # RENAME
        other = f"kit_{token_hex(4)}"
        offer_executor_again(tmp_path / "renamed", monkeypatch, self.name, other)
        driver = make(other)
        driver.ready()
        driver.run_step()
        driver.stop()

    def _capabilities(self, driver: ExecutorDriver) -> ExecutorCapabilities:
        return driver.plugin.capabilities

"""The conformance kit of executors: subclass it in your package's tests, and pytest runs all of it.

::

    from enginebay.testing import ExecutorSuite

    class TestMine(ExecutorSuite):
        name = "mine"                  # as in [executor] use
        options = {"ring_slots": 4}    # as in [executor.options]; optional
        world_sizes = (1, 2)           # numbers of ranks; optional

The workers run a fake model. No test measures time: they wait for events, and ``patience`` bounds each wait. Of an
executor with an engine in every rank (``every_rank_schedules``) one process has one rank: its ``world_sizes`` are
``(1,)``, and what its ranks have to agree on is for tests of its own.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from pathlib import Path
from secrets import token_hex

import pytest

from enginebay.errors import EnginebayError, StartFailed, WorkerFailed
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
from enginebay.testing._executor_base import MakeDriver, each_size
from enginebay.testing._executor_driver import START_CALLS, ExecutorDriver, token_of
from enginebay.testing._executor_faults import Faults
from enginebay.testing._executor_ranks import SeveralRanks
from enginebay.testing._offer import offer_executor_again


class ExecutorSuite(SeveralRanks, Faults):
    """What every executor keeps. ``name`` is that of an installed executor."""

    @each_size
    def test_the_start_is_answered_phase_by_phase(self, driver: ExecutorDriver) -> None:
        workers = driver.start().workers
        assert [worker.rank for worker in workers] == [place.rank for place in driver.world.ranks]
        assert [worker.incarnation for worker in workers] == [f"kit-0-{1 + worker.rank}" for worker in workers]
        assert all(worker.pid > 0 and worker.host for worker in workers)
        results = [driver.calls(call) for call in START_CALLS]
        kinds = [PluginsLoaded, DeviceReady, ModelLoaded, MemoryAvailable, Ack, Ack]
        assert [[type(one) for one in each] for each in results] == [[kind] * len(workers) for kind in kinds]
        driver.run_step()
        assert driver.executor is not None
        assert driver.executor.health().alive

    @each_size
    def test_start_and_stop_and_start_again(self, driver: ExecutorDriver) -> None:  # X13
        driver.ready()
        driver.run_step()
        probed = driver.probes.kinds
        driver.stop()
        driver.wait_until_closed()
        driver.probes.wait_until_free(driver.patience)
        driver.stop()
        assert driver.executor is not None
        assert not driver.executor.health().alive
        if driver.plugin.capabilities.restartable:
            driver.generation += 1
            driver.ready()
            driver.run_step()
            assert driver.probes.kinds == probed, "probes are of one start's workers: each start gives them"
        assert driver.exits == []  # a stop that was asked for is no loss

    def test_stop_before_any_start(self, driver: ExecutorDriver) -> None:  # X13
        driver.stop()
        driver.stop()

    def test_stop_after_a_failed_start(self, driver: ExecutorDriver) -> None:  # X13, X14
        with pytest.raises(StartFailed, match=f"rank {len(driver.world.ranks) - 1}"):
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

    def test_an_object_that_cannot_cross_is_refused_at_the_sender(self, running: ExecutorDriver) -> None:  # X15
        for thing in (threading.Lock(), lambda: 0):
            call = ExecuteModel(scheduler_output=SchedulerOutput(step=0, annex={"kit": thing}))  # type: ignore[dict-item]  # the fault under test
            with pytest.raises(TypeError, match="ExecuteModel holds something that cannot cross to a worker"):
                running.submit(call)
        running.run_step()

    def test_answers_come_in_the_order_of_the_calls(self, running: ExecutorDriver) -> None:
        order: list[int] = []
        futures: list[tuple[Future[Replies], int]] = []
        for number in range(50):
            step, token = running.next_step(b"raise" if number % 7 == 3 else b"")
            future = running.submit(step)
            future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]  # no type for a default
            futures.append((future, token))
        for number, (future, token) in enumerate(futures):
            if number % 7 == 3:
                with pytest.raises(WorkerFailed):
                    running.results(future)
            else:
                assert token_of(running.results(future)[0]) == token
        assert order == list(range(50))

    def test_submit_returns_while_the_worker_is_busy(self, running: ExecutorDriver) -> None:  # NONBLOCK
        depth = 2 * max(1, running.plugin.capabilities.max_in_flight)  # a step is one call, or two
        steps = [running.next_step(b"hold") for _ in range(depth)]
        futures: list[Future[Replies]] = []
        submitting = threading.Thread(target=lambda: futures.extend(running.submit(step) for step, _ in steps))
        submitting.start()
        submitting.join(running.patience)
        returned = not submitting.is_alive()
        done = any(future.done() for future in futures)
        running.gate.touch()  # the worker was held until now
        submitting.join()
        assert returned, "submit waits for the worker"
        assert not done
        assert [token_of(running.results(future)[0]) for future in futures] == [token for _, token in steps]

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
        driver.drop()
        gc.collect()
        driver.wait_until_gone()
        if not driver.processes:
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

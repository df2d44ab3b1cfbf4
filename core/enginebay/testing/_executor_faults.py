"""The part of the executors' suite that is about what goes wrong: told at once, by rank, and nothing is left of it."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

import pytest

from enginebay.errors import EnginebayError, WorkerFailed, WorkerLost
from enginebay.testing._executor_base import ExecutorBase, several
from enginebay.testing._executor_driver import START_CALLS, ExecutorDriver, is_there, token_of
from enginebay.testing.fakes import SAID


class Faults(ExecutorBase):
    """Failed calls, failed starts, killed workers, wedged workers.

    ``tells_last_lines``: what a worker wrote last is told with its death.
    """

    tells_last_lines: ClassVar[bool] = False

    def test_a_failed_call_leaves_the_line_aligned(self, running: ExecutorDriver) -> None:  # X2, X3
        for how, said in (
            (b"raise", "ValueError: the fake"),
            (b"exit", "SystemExit: the fake"),
            (b"raise", "asked to fail"),
        ):
            step, _ = running.next_step(how)
            with pytest.raises(WorkerFailed, match=said) as caught:
                running.call(step)
            assert "failed in execute_model" in str(caught.value)
            assert "_misbehave" in caught.value.remote_traceback
            running.run_step()

    @several
    def test_a_failure_on_a_rank_without_data_is_told(self, running: ExecutorDriver) -> None:  # X2, X3
        last = running.workers[-1]
        for how, said in ((b"raise", "ValueError"), (b"exit", "SystemExit")):
            step, _ = running.next_step(b"%s@%d" % (how, last.rank))
            with pytest.raises(WorkerFailed, match=said) as caught:
                running.call(step)
            assert f"rank {last.rank} (pid {last.pid}, host {last.host}) failed in execute_model" in str(caught.value)
            assert "_misbehave" in caught.value.remote_traceback
            running.run_step()

    @several
    def test_a_phase_that_fails_on_one_rank_is_told(self, driver: ExecutorDriver) -> None:  # X14
        driver.start(runner_options={"fail_load": "the weights are torn", "fail_rank": 1})
        driver.calls(START_CALLS[0])
        driver.calls(START_CALLS[1])
        with pytest.raises(WorkerFailed, match="failed in load_model: ValueError: the weights are torn") as caught:
            driver.calls(START_CALLS[2])
        assert str(caught.value).startswith("rank 1 (pid ")
        driver.stop()
        driver.wait_until_gone()

    def test_stop_answers_what_is_pending(self, driver: ExecutorDriver) -> None:  # X13: also when the workers hang
        driver.ready()
        futures = [driver.submit(driver.next_step(b"hold")[0]) for _ in range(2)]
        driver.stop(seconds=0.2)
        for future in futures:
            with pytest.raises(EnginebayError):
                driver.results(future)
        self._ended(driver)
        driver.stop()

    @several
    def test_a_wedged_worker_is_stopped_with_the_others(self, driver: ExecutorDriver) -> None:  # X13
        driver.ready()
        future = driver.submit(driver.next_step(b"hold@1")[0])
        driver.stop(seconds=0.5)
        with pytest.raises(EnginebayError):
            driver.results(future)
        self._ended(driver)

    def test_a_killed_worker_is_reported_and_its_calls_are_answered(self, driver: ExecutorDriver) -> None:  # X4
        driver.ready()
        if not driver.own_processes:
            self._has_no_process_to_kill(driver)
            return
        victim = driver.workers[-1]
        assert token_of(driver.call(driver.next_step(b"say@%d" % victim.rank)[0])) >= 0
        futures = [driver.submit(driver.next_step(b"hold")[0]) for _ in range(2)]
        told_before: list[int] = []
        for future in futures:
            future.add_done_callback(lambda _: told_before.append(len(driver.exits)))
        os.kill(victim.pid, signal.SIGKILL)
        driver.wait_until(lambda: bool(driver.exits), "the death was not reported")
        driver.gate.touch()  # the others answer
        for future in futures:
            with pytest.raises(WorkerLost, match=f"rank {victim.rank}"):
                driver.results(future)
        assert told_before == [1, 1], "a call was failed before it was told how the worker ended"
        (told,) = driver.exits
        assert (told.rank, told.incarnation) == (victim.rank, victim.incarnation)
        assert told.signal in (None, signal.SIGKILL)
        assert told.exit_code in (None, -signal.SIGKILL, 128 + signal.SIGKILL)
        if self.tells_last_lines:
            assert SAID in "\n".join(told.last_log_lines)
        assert driver.executor is not None
        health = driver.executor.health()
        assert (health.alive, health.lost_ranks) == (False, (victim.rank,))
        with pytest.raises(WorkerLost, match=f"rank {victim.rank}"):
            driver.results(driver.submit(driver.next_step()[0]))
        driver.stop()
        driver.wait_until_gone()
        assert len(driver.exits) == 1  # those that were stopped are no loss
        if driver.plugin.capabilities.restartable:
            driver.generation += 1
            driver.ready()
            driver.run_step()

    def test_stop_ends_workers_that_have_just_been_stopped_or_killed(self, driver: ExecutorDriver) -> None:  # X12, X13
        """Before anybody has told the executor of it."""
        driver.ready()
        if not driver.own_processes:
            self._has_no_process_to_kill(driver)
            return
        for worker, number in zip(driver.workers, (signal.SIGSTOP, signal.SIGKILL), strict=False):
            os.kill(worker.pid, number)
        driver.stop()
        driver.wait_until_gone()
        if driver.plugin.capabilities.restartable:
            driver.generation += 1
            driver.ready()
            driver.run_step()

    def _ended(self, driver: ExecutorDriver) -> None:
        """Processes that hang are killed; a thread ends when it is let go."""
        if driver.own_processes:
            driver.wait_until_gone()
        driver.gate.touch()
        if not driver.own_processes:
            driver.wait_until_closed()

    def _has_no_process_to_kill(self, driver: ExecutorDriver) -> None:
        """Its workers live and die with the process that asks, or are not on this host."""
        here = [worker for worker in driver.workers if worker.pid == os.getpid()]
        assert here == list(driver.workers) or not any(is_there(worker.pid) for worker in driver.workers)
        driver.run_step()

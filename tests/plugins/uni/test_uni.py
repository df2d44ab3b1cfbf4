"""What is particular to ``uni``: a thread that dies, a thread that hangs, and what is said about both."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enginebay.errors import CapabilityError, EngineDead, StartFailed, WorkerHung, WorkerLost
from enginebay.interfaces import Kind, StartSpec
from enginebay.messages import Envelope, RankPlace, Replies, WorldPlan
from enginebay.plugins import PluginHost
from enginebay.testing._executor_driver import ExecutorDriver, token_of
from enginebay.testing._offer import offer
from enginebay.testing.fakes import FAKE_RUNNER
from enginebay_uni.executor import UniExecutor


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutorDriver]:
    offer(tmp_path / "offered", monkeypatch, Kind.RUNNER, FAKE_RUNNER, "enginebay.testing.fakes")
    one = ExecutorDriver("uni", tmp_path / "uni", patience=30.0)
    yield one
    one.gate.touch()
    if one.executor is not None:
        one.stop()


def uni(driver: ExecutorDriver) -> UniExecutor:
    assert isinstance(driver.executor, UniExecutor)
    return driver.executor


def send_damage(driver: ExecutorDriver) -> None:
    """Break the line to the worker, as no caller can: its loop ends with an error."""
    session = uni(driver)._session
    assert session is not None
    session._ours.send(b"not an envelope")


def wait(what: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(6000):
        if what():
            return
        done.wait(0.005)
    raise AssertionError("it did not happen")


def test_capabilities() -> None:
    capabilities = PluginHost().load_executor("uni", {}).plugin.capabilities
    assert (capabilities.max_in_flight, capabilities.restartable, capabilities.max_world_size) == (2, True, 1)


def test_a_worker_that_dies_is_told_of_at_once(driver: ExecutorDriver) -> None:  # X4, as far as a thread can die
    driver.ready()
    held = driver.submit(driver.next_step(b"hold")[0])
    send_damage(driver)
    behind = driver.submit(driver.next_step()[0])
    driver.gate.touch()
    assert token_of(driver.results(held)[0]) >= 0
    with pytest.raises(WorkerLost) as caught:
        driver.results(behind)
    told = "enginebay.transport.codec.DamagedMessage: 15 bytes are not one whole envelope: "
    assert str(caught.value).startswith(f"rank 0: the worker's thread ended before it answered: {told}")
    wait(lambda: len(driver.exits) == 1)
    (worker_exit,) = driver.exits
    assert (worker_exit.rank, worker_exit.incarnation) == (0, "kit-0-1")
    assert worker_exit.last_log_lines[-1].startswith(told)
    health = uni(driver).health()
    assert (health.alive, health.lost_ranks) == (False, (0,))
    assert told in health.detail
    with pytest.raises(WorkerLost):
        driver.results(driver.submit(driver.next_step()[0]))
    driver.wait_until_closed()  # the runner was closed all the same
    driver.generation += 1
    driver.ready()
    driver.run_step()


def test_the_core_may_stop_it_from_the_report(driver: ExecutorDriver) -> None:
    stopped = threading.Event()

    def on_exit(worker_exit: object) -> None:
        driver.stop()
        stopped.set()

    uni(driver).context.__dict__["worker_exited"] = on_exit
    driver.ready()
    send_damage(driver)
    assert stopped.wait(30)


def test_a_wedged_worker_is_reported_and_not_started_beside(
    driver: ExecutorDriver, caplog: pytest.LogCaptureFixture
) -> None:  # X13
    driver.ready()
    held = driver.submit(driver.next_step(b"hold")[0])
    wait(lambda: [rank.phase for rank in uni(driver).health().ranks] == ["execute_model"])
    with caplog.at_level(logging.ERROR, "enginebay.uni"):
        driver.stop(seconds=0.1)
        driver.stop(seconds=0.1)
    said = "rank 0: the worker's thread of generation 0 is still in execute_model"
    assert caplog.messages == 2 * [f"{said}; a thread cannot be killed, so what it holds is given back when it returns"]
    with pytest.raises(EngineDead, match=r"^the executor was stopped before the worker answered\n"):
        driver.results(held)
    assert uni(driver).health().detail == said
    driver.generation += 1
    with pytest.raises(WorkerHung) as caught:
        driver.start()
    assert str(caught.value) == f"{said}, so executor 'uni' cannot start generation 1 beside it: end this process"
    driver.gate.touch()
    driver.wait_until_closed()
    driver.stop()
    driver.ready()
    driver.run_step()


def test_it_is_not_started_twice(driver: ExecutorDriver) -> None:
    driver.ready()
    with pytest.raises(StartFailed, match=r"^executor 'uni' is running generation 0: stop it before it starts again$"):
        driver.start()
    driver.run_step()


def test_a_world_of_two_is_refused(driver: ExecutorDriver) -> None:
    world = WorldPlan(ranks=(RankPlace(), RankPlace(rank=1)))
    with pytest.raises(CapabilityError) as caught:
        uni(driver).start(
            StartSpec(generation=0, world=world, payloads=(b"", b""), incarnations=("a", "b"), deadline=0.0)
        )
    assert str(caught.value) == (
        "executor 'uni' runs one worker, and the plan has 2 ranks: choose executor 'mp', or set tensor_parallel_size = "
        "1 and pipeline_parallel_size = 1 in [parallel]"
    )


def test_a_damaged_payload_fails_the_start_and_is_no_loss(driver: ExecutorDriver) -> None:
    with pytest.raises(StartFailed, match=r"^rank 0: the worker's thread ended before HELLO: 3 bytes are not"):
        driver.start(payload=b"abc")
    driver.stop()
    assert driver.exits == []


def test_before_the_start_calls_are_answered_with_an_error(driver: ExecutorDriver) -> None:
    assert uni(driver).health().detail == "not started"
    with pytest.raises(WorkerLost, match=r"^the executor has not been started\n"):
        driver.results(driver.submit(driver.next_step()[0]))


def test_a_call_for_no_rank_is_answered_with_nothing(driver: ExecutorDriver) -> None:
    driver.ready()
    future = uni(driver).submit(Envelope(generation=0, call_id=999, payload=b"", ranks=(1,)))
    assert future.result(0) == Replies(generation=0, call_id=999, replies=())


def test_a_cancelled_future_does_not_disturb_the_line(driver: ExecutorDriver) -> None:
    driver.ready()
    held = driver.submit(driver.next_step(b"hold")[0])
    assert held.cancel()
    step, token = driver.next_step()
    future = driver.submit(step)
    driver.gate.touch()
    assert token_of(driver.results(future)[0]) == token


def test_nothing_keeps_a_dropped_executor(driver: ExecutorDriver) -> None:  # X13
    driver.ready()
    driver.run_step()
    kept = weakref.ref(uni(driver))
    session = uni(driver)._session
    assert session is not None
    driver.executor = None
    gc.collect()
    assert kept() is None
    assert session.join(30)


LEAVES_IN_THE_MIDDLE = """
import sys, threading
from pathlib import Path
from enginebay.testing._executor_driver import ExecutorDriver

driver = ExecutorDriver("uni", Path(sys.argv[1]))
driver.ready()
future = driver.submit(driver.next_step(b"hold")[0])
opener = threading.Timer(0.3, driver.gate.touch)
opener.daemon = True
opener.start()
print("done" if future.done() else "in the middle")
"""


def test_a_process_that_ends_in_the_middle_of_a_step_ends_well(driver: ExecutorDriver, tmp_path: Path) -> None:  # X13
    folder = tmp_path / "leaving"
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_IN_THE_MIDDLE, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "in the middle\n", "")
    assert (folder / "closed-0").exists()  # the worker ended in good order first


def test_threads_bear_our_name(driver: ExecutorDriver) -> None:
    driver.ready()
    names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("enginebay-uni-"))
    assert names == ["enginebay-uni-kit-0-1", "enginebay-uni-kit-0-1-replies"]

"""Workers that die, stop, hang, print and leave things behind: what is said of it, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import threading
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from enginebay.errors import EngineDead, ModelError, StartFailed, WorkerFailed, WorkerLost
from enginebay.interfaces import ExecutorHealth, RankHealth
from enginebay.messages import Replies
from enginebay.testing._executor_driver import START_CALLS, ExecutorDriver, is_there
from enginebay_mp import process
from enginebay_mp.executor import MpExecutor
from plugins.mp.conftest import Drive


def mp(driver: ExecutorDriver) -> MpExecutor:
    assert isinstance(driver.executor, MpExecutor)
    return driver.executor


def pids(driver: ExecutorDriver) -> list[int]:
    return [worker.pid for worker in driver.workers]


def rank_health(driver: ExecutorDriver, rank: int) -> RankHealth:
    health: ExecutorHealth = mp(driver).health()
    return next((one for one in health.ranks if one.rank == rank), RankHealth(rank=rank))


def held(driver: ExecutorDriver, how: bytes = b"hold") -> Future[Replies]:
    """A step that every rank is in, until the gate opens."""
    future = driver.submit(driver.next_step(how)[0])
    ranks = [place.rank for place in driver.world.ranks]
    driver.wait_until(
        lambda: all(rank_health(driver, rank).phase == "execute_model" for rank in ranks), "a rank is not in the step"
    )
    return future


def child_of(driver: ExecutorDriver) -> int:
    file = Path(f"{driver.closed}.child")
    driver.wait_until(lambda: file.exists() and bool(file.read_text()), "there is no child")
    return int(file.read_text())


def test_a_worker_that_is_killed_wakes_who_waits_for_it(
    drive: Drive, capfd: pytest.CaptureFixture[str]
) -> None:  # X4, and recovery's first half
    driver = drive()
    driver.ready()
    first = pids(driver)
    driver.call(driver.next_step(b"lines@1")[0])
    pending = held(driver, b"hold")
    os.kill(first[1], signal.SIGKILL)
    driver.wait_until(lambda: len(driver.exits) == 1, "the core was not told")
    assert not pending.done()  # rank 0 is in its step still, and what is told wakes the core
    driver.gate.touch()
    with pytest.raises(WorkerLost) as caught:
        driver.results(pending)
    assert str(caught.value).startswith(
        f"rank 1 of 2: its process (pid {first[1]}) was killed (signal 9, SIGKILL) in execute_model; last log lines: "
        "the weights are warm | \\x1b[31mred\\x1b[0m and \\u202ereversed | 100% | xxx"
    )
    assert len(str(caught.value)) < 1000
    (told,) = driver.exits
    assert (told.rank, told.signal, told.exit_code, told.incarnation) == (1, 9, None, driver.workers[1].incarnation)
    assert told.last_log_lines[:2] == ("the weights are warm", "\\x1b[31mred\\x1b[0m and \\u202ereversed")
    health = mp(driver).health()
    assert (health.alive, health.lost_ranks) == (False, (1,))
    with pytest.raises(WorkerLost):  # it answers no later call either, at once
        driver.results(driver.submit(driver.next_step()[0]))
    driver.stop()
    assert not any(is_there(pid) for pid in first)
    err = capfd.readouterr().err
    assert "[rank 1] the weights are warm\n" in err
    assert "\x1b" not in err
    driver.generation += 1
    driver.ready()
    driver.run_step()
    assert not set(pids(driver)) & set(first)


def test_a_worker_that_is_stopped_is_seen_and_can_be_ended(drive: Drive) -> None:  # X5, X13
    driver = drive()
    driver.ready()
    pending = held(driver)
    os.kill(pids(driver)[1], signal.SIGSTOP)
    driver.wait_until(lambda: rank_health(driver, 1).state == "stopped", "it does not look stopped")
    stopped, running = rank_health(driver, 1), rank_health(driver, 0)
    assert (stopped.phase, stopped.step, running.state) == ("execute_model", 1, "running")
    assert 0 <= stopped.age < driver.patience
    stacks = mp(driver).stacks(driver.deadline())
    assert list(stacks) == [0]
    assert re.search(r'File ".*fakes\.py", line \d+ in _misbehave', stacks[0])
    assert "_run_module_as_main" in stacks[0]
    driver.stop()
    assert not any(is_there(pid) for pid in pids(driver))
    with pytest.raises(EngineDead, match=r"^the executor was stopped before the worker answered"):
        driver.results(pending)
    assert driver.exits == []


def test_a_wedged_worker_is_killed_by_the_deadline(drive: Drive) -> None:  # X13
    driver = drive(1)
    driver.ready()
    pending = held(driver)
    driver.stop(seconds=0.2)
    assert not is_there(pids(driver)[0])
    driver.stop(seconds=0.2)
    assert pending.done()
    assert mp(driver).health() == ExecutorHealth(alive=False, detail="stopped")


@pytest.mark.parametrize("ends", ["killed", "stopped and killed"])
def test_how_an_only_worker_ended_is_told_before_its_calls_fail(drive: Drive, ends: str) -> None:
    """Whoever is woken by a call that fails asks at once how the worker ended: by that, failures of one kind are known
    again."""
    driver = drive(1)
    driver.ready()
    told_before: list[list[int | None]] = []
    futures = [held(driver, b"hold") for _ in range(2)]
    for future in futures:
        future.add_done_callback(lambda _: told_before.append([one.signal for one in driver.exits]))
    if ends == "stopped and killed":
        os.kill(pids(driver)[0], signal.SIGSTOP)
    os.kill(pids(driver)[0], signal.SIGKILL)
    for future in futures:
        with pytest.raises(WorkerLost, match=r"was killed \(signal 9, SIGKILL\) in execute_model"):
            driver.results(future)
    assert told_before == [[signal.SIGKILL], [signal.SIGKILL]]


def test_what_a_worker_has_started_ends_with_it(drive: Drive) -> None:  # X12
    for ends in ("killed", "stopped"):
        driver = drive(1)
        driver.ready()
        driver.call(driver.next_step(b"child")[0])
        child = child_of(driver)
        assert psutil.Process(child).is_running()
        if ends == "killed":
            os.kill(pids(driver)[0], signal.SIGKILL)
        else:
            driver.stop()
        driver.wait_until(lambda: not is_running(child), "the child outlives the worker")  # noqa: B023  # called at once


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_that_leaves_without_a_word_is_lost(drive: Drive) -> None:  # X4
    driver = drive(1)
    driver.ready()
    with pytest.raises(WorkerLost, match=r"^rank 0 of 1: its process \(pid \d+\) ended \(exit code 0\) in execute_mod"):
        driver.call(driver.next_step(b"gone")[0])
    driver.wait_until(lambda: len(driver.exits) == 1, "the core was not told")
    assert (driver.exits[0].exit_code, driver.exits[0].signal) == (0, None)


def test_want_of_memory_is_named(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter([3, *[4] * 100])
    monkeypatch.setattr(process, "oom_kills", lambda: next(kills))
    driver = drive(1)
    driver.ready()
    os.kill(pids(driver)[0], signal.SIGKILL)
    driver.wait_until(lambda: len(driver.exits) == 1, "the core was not told")
    assert driver.exits[0].reason == (
        "was killed (signal 9, SIGKILL), out of memory: the kernel's count of such kills has risen"
    )


def test_who_waits_for_room_is_woken_by_the_readers_death(drive: Drive) -> None:  # X7
    driver = drive(1, ring_slots=16, slot_bytes=64)
    driver.ready()
    held(driver)
    sent: list[Future[Replies]] = []
    over = threading.Event()

    def fill() -> None:
        sent.extend(driver.submit(driver.next_step()[0]) for _ in range(20))
        over.set()

    writer = threading.Thread(target=fill)
    writer.start()
    driver.wait_until(lambda: len(mp(driver)._group._pending._pending) > 1, "nothing was sent")  # type: ignore[union-attr]  # it is started
    assert not over.wait(0.3)  # it waits for room, which a step that is held does not give
    os.kill(pids(driver)[0], signal.SIGKILL)
    assert over.wait(driver.patience)
    writer.join(driver.patience)
    for future in sent:
        with pytest.raises(WorkerLost):
            driver.results(future)


def test_an_idle_worker_uses_no_processor(drive: Drive) -> None:  # X7
    driver = drive()
    driver.ready()
    driver.run_step()
    before = [psutil.Process(pid).cpu_times() for pid in pids(driver)]
    mine = psutil.Process().cpu_times()
    threading.Event().wait(1.0)
    spent = [
        sum(psutil.Process(pid).cpu_times()[:2]) - sum(was[:2]) for pid, was in zip(pids(driver), before, strict=True)
    ]
    assert max(spent) <= 0.05
    assert sum(psutil.Process().cpu_times()[:2]) - sum(mine[:2]) <= 0.2


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError: the weights are torn",
        "ModelError: a.safetensors is torn",
        "MemoryError: none is left",
        "CapabilityError: no such kernel",
    ],
)
def test_a_start_that_fails_on_one_rank_of_two(drive: Drive, raised: str) -> None:  # X14
    driver = drive()
    told = raised.removeprefix("ValueError: ")
    driver.start(runner_options={"fail_load": told, "fail_rank": 1})
    driver.calls(START_CALLS[0])
    driver.calls(START_CALLS[1])
    with pytest.raises(WorkerFailed) as caught:
        driver.calls(START_CALLS[2])
    match = re.fullmatch(rf"rank 1 \(pid (\d+), host .+\) failed in load_model: {raised}", str(caught.value))
    assert match is not None
    assert int(match[1]) == pids(driver)[1]
    assert caught.value.exit_code == 3
    assert caught.value.remote_traceback.count(raised) == 1
    driver.stop()
    driver.wait_until_closed()


def test_a_model_that_no_rank_can_load_is_the_models_fault(drive: Drive) -> None:  # X14, E2
    driver = drive()
    driver.start(runner_options={"fail_load": "ModelError: a.safetensors is torn", "fail_rank": -1})
    driver.calls(START_CALLS[0])
    driver.calls(START_CALLS[1])
    with pytest.raises(ModelError, match=r"^a\.safetensors is torn\n") as caught:
        driver.calls(START_CALLS[2])
    assert caught.value.exit_code == 2
    driver.stop()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "import time; time.sleep(600)",
            r"after \d+ s, rank 0 of 2 did not say HELLO: its process \(pid \d+\) is running; rank 1 of 2 did .+ing",
        ),
        (
            "print('no such library'); raise SystemExit(5)",
            r"rank [01] of 2: its process \(pid \d+\) ended \(exit code 5\) before HELLO; last log lines: no such .+",
        ),
        (
            "import os; os.kill(os.getpid(), 11)",
            r"rank [01] of 2: its process \(pid \d+\) was killed \(signal 11, SIGSEGV\) before HELLO",
        ),
    ],
)
def test_who_does_not_say_hello_is_named(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:  # X14
    monkeypatch.setattr(process, "ARGV", (process.ARGV[0], "-c", program))
    driver = drive()
    driver.patience = 1.0 if "sleep" in program else driver.patience
    with pytest.raises(StartFailed) as caught:
        driver.start()
    assert re.fullmatch(said, str(caught.value)), str(caught.value)
    driver.stop(seconds=0.5)
    driver.patience = 60.0


def test_nothing_that_has_a_name_is_taken(drive: Drive) -> None:  # X11
    one, other = drive(1), drive(1)
    one.ready()
    other.ready()
    before = {
        pid: sorted(os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        for pid in (*pids(one), *pids(other))
    }
    for targets in before.values():
        assert not [target for target in targets if target.startswith(("/dev/shm", "/tmp", "socket:"))]
    one.run_step()
    other.run_step()

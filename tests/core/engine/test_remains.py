"""What is left of workers: seen by their processes and by the manifest, waited for, and given up in the end."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.config import load
from enginebay.engine.recovery import NoWayBack
from enginebay.engine.remains import findings_of, with_process
from enginebay.engine.roster import RECLAIMED
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.engine.supervision import Supervision
from enginebay.messages import Incarnation, WorkerInfo
from enginebay.plugins import PluginHost
from enginebay.runfolder import LazyRunFolder
from enginebay.runtime import pid_space, system_runtime
from enginebay.status.reclaim import Reclaim
from support.clock import FakeClock, fake_runtime
from support.fake_engines import Installed
from support.reclaiming import Stopped

MARK = f"ENGINEBAY_TEST=remains-{os.getpid()}"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the mark, which ends with the test."""
    name, _, value = MARK.partition("=")
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    environment = {**os.environ, name: value}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs, with its own environment
        yield process
        process.kill()


def known(pid: int, host: str = "", *, here: bool = True, space: str = "") -> Incarnation:
    worker = WorkerInfo(rank=0, local_rank=0, incarnation="i", host=host or socket.gethostname(), pid=pid, space=space)
    return with_process(Incarnation(id="i"), worker, here=here)


def verdicts(incarnation: Incarnation, *remains: str, here: bool = True) -> dict[str, Reclaim]:
    return {found.what: found.verdict for found in findings_of(incarnation, remains, here=here)}


def test_a_process_whose_name_the_kernel_cut_inside_a_character() -> None:
    rename = "import ctypes, sys; ctypes.CDLL(None).prctl(15, ('é' * 8).encode()); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", rename]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert b"\xc3)" in Path(f"/proc/{process.pid}/stat").read_bytes()
        incarnation = known(process.pid)
        assert verdicts(incarnation)["process"] is Reclaim.PENDING
        process.kill()
    assert verdicts(incarnation)["process"] is Reclaim.RECLAIMED


def test_a_process_is_pending_until_it_is_reaped_or_a_zombie(child: subprocess.Popen[bytes]) -> None:
    incarnation = known(child.pid)
    assert verdicts(incarnation) == {"executor": Reclaim.RECLAIMED, "process": Reclaim.PENDING}
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing
    assert verdicts(incarnation)["process"] is Reclaim.RECLAIMED
    assert verdicts(known(child.pid))["process"] is Reclaim.RECLAIMED


def test_of_another_host_nobody_here_can_judge() -> None:
    assert verdicts(known(os.getppid(), "elsewhere"))["process"] is Reclaim.UNKNOWN


def test_where_others_start_the_workers_a_pid_counts_with_its_space_alone(child: subprocess.Popen[bytes]) -> None:
    """A host's name may be a container's, too, whose pids are other processes, or none, here."""
    unsaid, ours = known(child.pid, here=False), known(child.pid, here=False, space=pid_space())
    others = known(child.pid, here=False, space=pid_space() + "1")
    assert pid_space().count(" ") == 1
    assert known(child.pid, "renamed", here=False, space=pid_space()) == ours == known(child.pid)
    assert [verdicts(one, here=False)["process"] for one in (unsaid, ours, others)] == [
        Reclaim.UNKNOWN,
        Reclaim.PENDING,
        Reclaim.UNKNOWN,
    ]
    child.kill()
    child.wait()
    assert verdicts(ours, here=False)["process"] is Reclaim.RECLAIMED
    for space in ("", pid_space() + "1"):
        assert verdicts(known(child.pid, here=False, space=space), here=False)["process"] is Reclaim.UNKNOWN
    assert verdicts(known(os.getpid(), here=False, space="elsewhere"), here=False)["process"] is Reclaim.UNKNOWN


def test_one_that_never_said_who_it_is_may_yet_come_where_others_start_it() -> None:
    assert verdicts(Incarnation(id="i")) == {"executor": Reclaim.RECLAIMED}
    assert verdicts(Incarnation(id="i"), here=False) == {"executor": Reclaim.RECLAIMED, "process": Reclaim.UNKNOWN}


@pytest.mark.parametrize(
    ("elsewhere", "said"),
    [(False, ("True", "")), (True, ("Unknown", f"pid {os.getpid()} is not of this host, or not known to be"))],
)
def test_it_is_the_executor_that_says_where_its_workers_may_be(
    fake: Installed, elsewhere: bool, said: tuple[str, str]
) -> None:
    host = PluginHost()
    one = plan(load(fake.config(), sets=("status.sinks=[]",), environ={}), host)
    able = dataclasses.replace(one.executor.plugin.capabilities, multi_node=elsewhere)
    plugin = dataclasses.replace(one.executor.plugin, capabilities=able)
    other = dataclasses.replace(one, executor=dataclasses.replace(one.executor, plugin=plugin))
    core = start(other, system_runtime(seed=0), host)
    core.stop()
    [status] = core.parts.roster.statuses()
    condition = status.condition(RECLAIMED)
    assert condition is not None
    assert (condition.truth, condition.message) == said


def test_a_worker_that_is_a_thread_of_ours_has_no_process_to_look_for() -> None:
    assert verdicts(known(os.getpid())) == {"executor": Reclaim.RECLAIMED}


def test_the_manifest_is_looked_through(
    child: subprocess.Popen[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = LazyRunFolder(tmp_path_factory.mktemp("r"))  # a short path
    assert folder.remains() == ()
    segment = f"enginebay-test-{os.getpid()}"
    folder.record("process", MARK)
    folder.record("segment", segment)
    folder.record("port", "80")
    assert folder.remains() == (f"process {child.pid}",)
    (Path("/dev/shm") / segment).touch()  # where named segments are
    assert folder.remains() == (f"segment {segment}", f"process {child.pid}")
    child.kill()
    child.wait()
    (Path("/dev/shm") / segment).unlink()  # see above
    assert folder.remains() == ()
    folder.close()
    assert folder.remains() == ()


class Held(Stopped):
    """A worker whose things are free at ``free_at``, on a clock that waits as it is told to."""

    def __init__(self, free_at: float) -> None:
        self.clock = clock = FakeClock()
        runtime = fake_runtime(clock)
        self.supervision = Supervision(runtime, {})
        super().__init__(
            runtime, self.supervision, "cpu", remains=lambda: ("segment s",) if clock.time < free_at else ()
        )


def test_it_is_waited_for_until_nothing_is_left() -> None:  # T14, T15
    held = Held(free_at=109.0)
    assert held.said() == ("Reclaiming", "False", "Waiting: manifest: Pending (segment s)")
    held.roster.reclaim(30.0)
    assert 109.0 <= held.clock.time < 110.0
    assert held.said()[1:] == ("True", "Free: ")
    assert held.supervision.book.entries()[0].record.finished


@pytest.mark.parametrize(("seconds", "lines"), [(0.5, 0), (20.0, 1)])
def test_what_is_waited_for_is_said_once(caplog: pytest.LogCaptureFixture, seconds: float, lines: int) -> None:
    held = Held(free_at=100.0 + seconds)
    assert held.clock.time == 100.0
    held.roster.reclaim(30.0)
    told = "what its last worker had taken is not free yet, and is waited for, for 30 s at most"
    assert caplog.messages == [f"group-0/rank-0/cpu:0: {told}: manifest: Pending (segment s)"] * lines


def test_a_slot_that_is_not_free_in_time_is_quarantined_and_said_so() -> None:
    held = Held(free_at=200.0)
    with pytest.raises(NoWayBack) as caught:
        held.roster.reclaim(30.0)
    assert str(caught.value) == (
        "group-0/rank-0/cpu:0 is quarantined: what its last worker had taken is not free after 30 s: "
        "manifest: Pending (segment s)"
    )
    assert held.said() == ("Reclaiming", "False", "Quarantined: manifest: Pending (segment s)")
    (status,) = held.roster.statuses()
    assert (status.reason, status.message) == ("Quarantined", "not free after 30 s: manifest: Pending (segment s)")
    at = held.clock.time
    held.roster.stop(held, 400.0)  # type: ignore[arg-type]  # as the engine's end does
    held.roster.reclaim(10.0)
    assert held.clock.time == at, "it is not waited for once more"
    assert held.roster.statuses() == (status,)
    assert held.supervision.book.num_illegal == 0

"""The executors' suite fails broken executors, each by the check that is there for it, and passes the whole one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginebay.errors import EnginebayError
from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, Kind, StartResult, StartSpec
from enginebay.messages import Envelope, Replies
from enginebay.testing import ExecutorSuite
from enginebay.testing._executor_base import end
from enginebay.testing._executor_driver import ExecutorDriver
from enginebay.testing._offer import offer
from enginebay.testing.fakes import FAKE_RUNNER, KIT_EXTENSION
from support.threads_executor import EVERY, HangsInItsProbe

FAKES = "enginebay.testing.fakes"
FOUND = (AssertionError, pytest.fail.Exception, TimeoutError, EnginebayError)


class TestThreads(ExecutorSuite):
    """The whole one keeps all of it."""

    name = "threads"
    patience = 30.0

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            offer(tmp_path_factory.mktemp("site"), monkeypatch, Kind.EXECUTOR, cls.name, "support.threads_executor")
            yield


BROKEN = {
    "blocks": "test_submit_returns_while_the_worker_is_busy",
    "answersthenext": "test_a_late_reply_is_not_the_next_calls",
    "asksonerank": "test_a_call_is_open_until_the_last_rank_has_answered",
    "losesfailures": "test_a_failure_on_a_rank_without_data_is_told",
    "swapscalls": "test_calls_to_some_and_to_all_keep_their_order_on_each_rank",
    "asksall": "test_a_call_to_some_ranks_is_theirs_alone",
    "cutsmessages": "test_a_message_of_megabytes_arrives_whole_and_in_its_turn",
    "forgetswhowaits": "test_stop_answers_what_is_pending",
    "keepsitsworkers": "test_start_and_stop_and_start_again",
    "namesnobody": "test_stop_after_a_failed_start",
}


BROKEN_PROBES = {
    "isneverfree": "seat 7 is held after the stop: not all are closed",
    "raisesinitsprobe": "the probe of seat 7 raised KeyError: 'free'",
    "saysaword": "the probe of seat 7 has the verdict 'free', which is none",
    "hangsinitsprobe": "the probe of seat 7 does not return",
    "givesitsprobeonce": "each start gives them",
}


def test_every_broken_one_has_its_check() -> None:
    assert {*BROKEN, *BROKEN_PROBES} == set(EVERY) - {"threads"}


def run(check: str, driver: ExecutorDriver) -> None:
    """One check of the suite on a driver of ours."""
    function = getattr(ExecutorSuite, check)
    if "running" in function.__code__.co_varnames:
        driver.ready()
    function(ExecutorSuite(), driver)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, name in ((Kind.RUNNER, FAKE_RUNNER), (Kind.WORKER_EXTENSION, KIT_EXTENSION)):
        offer(tmp_path / "site", monkeypatch, kind, name, FAKES)
    for name in EVERY:
        offer(tmp_path / "site", monkeypatch, Kind.EXECUTOR, name, "support.threads_executor")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_found(installed: None, tmp_path: Path, name: str) -> None:
    with impatient(name, tmp_path) as driver, pytest.raises(FOUND):
        run(BROKEN[name], driver)


@pytest.mark.parametrize("name", BROKEN_PROBES)
def test_a_broken_probe_is_found(installed: None, tmp_path: Path, name: str) -> None:
    with impatient(name, tmp_path) as driver:
        try:
            with pytest.raises(AssertionError, match=re.escape(BROKEN_PROBES[name])):
                run("test_start_and_stop_and_start_again", driver)
        finally:
            if isinstance(driver.executor, HangsInItsProbe):
                driver.executor.let_go.set()


@contextmanager
def impatient(name: str, folder: Path) -> Iterator[ExecutorDriver]:
    """A driver of one whose workers are threads, which end with it."""
    driver = ExecutorDriver(name, folder / "driver", patience=1.0, world_size=2, extensions=(KIT_EXTENSION,))
    try:
        yield driver
    finally:
        driver.gate.touch()
        for line in driver.executor.lines.values():  # type: ignore[union-attr]  # all of them are threads
            line.close()
        driver.run_folder.close()


class Around(Executor[Any]):
    """Another executor, whole; what is broken is in a subclass."""

    def __init__(self, inner: Executor[Any], context: ExecutorContext[Any]) -> None:
        super().__init__(context)
        self.inner = inner

    def start(self, spec: StartSpec) -> StartResult:
        return self.inner.start(spec)

    def submit(self, envelope: Envelope) -> Future[Replies]:
        return self.inner.submit(envelope)

    def health(self) -> ExecutorHealth:
        return self.inner.health()

    def stop(self, deadline: float) -> None:
        self.inner.stop(deadline)


class LeavesOne(Around):
    """Stops its workers but for the last, in whose place it has put a process that nobody ends."""

    def start(self, spec: StartSpec) -> StartResult:
        workers = super().start(spec).workers
        self.left = subprocess.Popen(["sleep", "60"])
        return StartResult(workers=(*workers[:-1], msgspec.structs.replace(workers[-1], pid=self.left.pid)))


@pytest.fixture
def processes(installed: None, tmp_path: Path) -> Iterator[ExecutorDriver]:
    """A driver of workers that are processes."""
    driver = ExecutorDriver("mp", tmp_path / "driver", patience=30.0, world_size=2, extensions=(KIT_EXTENSION,))
    whole = driver.executor
    yield driver
    driver.gate.touch()
    assert whole is not None
    whole.stop(driver.deadline())
    driver.run_folder.close()


def test_a_swallowed_death_is_found(processes: ExecutorDriver) -> None:
    executor = processes.executor
    assert executor is not None
    executor.context = replace(executor.context, worker_exited=lambda worker_exit: None)
    ready = processes.ready

    def ready_and_impatient() -> None:
        ready()
        processes.patience = 3.0

    processes.ready = ready_and_impatient  # type: ignore[method-assign]  # nothing comes: it need not be waited for
    with pytest.raises(AssertionError, match="the death was not reported"):
        run("test_a_killed_worker_is_reported_and_its_calls_are_answered", processes)


def test_a_worker_that_is_left_after_the_stop_is_found(processes: ExecutorDriver) -> None:
    whole = processes.executor
    assert whole is not None
    leaves = LeavesOne(whole, whole.context)
    processes.executor = leaves
    processes.ready()
    processes.stop()
    processes.patience = 0.5
    try:
        with pytest.raises(AssertionError, match="a worker's process is there after the stop"):
            end(processes)
    finally:
        leaves.left.kill()
        leaves.left.wait(30)

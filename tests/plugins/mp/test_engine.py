"""Whole engines over worker processes: what happens to requests in flight, and what the user sees of a failed start."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay import LLM, SamplingParams
from enginebay.config import EngineConfig, load
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.errors import StartFailed, WorkerLost
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay.telemetry import read_spans
from enginebay_mp.executor import MpExecutor
from enginebay_mp.process import WorkerProcess
from support.census import Census
from support.fake_engine import DEFAULT
from support.fake_engines import ENGINEBAY, Installed, install

WORKER = "enginebay.worker.process"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """The fake runner as an installed plugin, in this process and in its workers."""
    for one in install(tmp_path, monkeypatch):
        for name, value in one.environ().items():
            monkeypatch.setenv(name, value)
        yield one


def workers() -> list[int]:
    """The worker processes of this process's engines."""
    children = psutil.Process().children()
    return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE and WORKER in child.cmdline()]


def test_a_request_that_kills_its_worker_is_found_and_ends_alone(fake: Installed, census: Census) -> None:  # R3
    sets = ["executor.use=mp", "recovery.longest_wait=0"]
    with LLM(config=fake.config(), sets=sets) as llm:
        answers = llm.generate(["say:hello", "poison", "say:and on"], errors="return")
        assert [answer.text for answer in answers] == ["hello", "", "and on"]
        assert [re.sub(r"pid \d+", "pid N", answer.error or "") for answer in answers] == [
            "",
            (
                "the workers were lost each of the three times that it ran, the last time alone: "
                "rank 0 of 1: its process (pid N) was killed (signal 9, SIGKILL) in execute_model"
            ),
            "",
        ]
        said = llm.health()
        assert said.healthy
        assert [one.restarts for one in said.workers] == [3]
    census.check()


def test_requests_in_flight_go_on_when_the_worker_is_killed_or_stopped(
    fake: Installed, census: Census, caplog: pytest.LogCaptureFixture
) -> None:  # X4, X5, R1, R8
    config = fake.config(step_seconds=0.02) | {"executor": {"use": "mp"}, "deadlines": {"heartbeat": 0.3, "step": 120}}
    with LLM(config=config) as llm, caplog.at_level(logging.WARNING):
        answers: list[str] = []
        prompts = ["one", "two", "say:three"]

        def ask() -> None:
            outputs = llm.generate(prompts, SamplingParams(max_tokens=100))
            answers.extend(output.text for output in outputs)

        client = threading.Thread(target=ask)
        client.start()
        seen: list[int] = []
        for number in (signal.SIGKILL, signal.SIGSTOP):
            (pid,) = new = _wait_for_worker(seen)
            _wait_for_tokens(llm)
            os.kill(pid, number)
            seen += new
        client.join(120)
        assert not client.is_alive()
        long = (DEFAULT * 3)[:100]
        assert answers == [long, long, "three"]
        assert _wait_for_worker(seen)
    said = "\n".join(caplog.messages)
    assert re.search(r"the workers of generation 0 are lost, void: .+ was killed \(signal 9, SIGKILL\)", said)
    assert re.search(
        r"the workers of generation 1 are lost, void: .+; rank 0 has been in (idle|.+ of step \d+) for \d+ s "
        r"\(its process is stopped\): no sign of life for 3 x \[deadlines\] heartbeat",
        said,
    )
    census.check()


def test_a_worker_that_dies_while_nothing_is_asked_is_replaced_at_once(
    fake: Installed, census: Census, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # X4: and its successor is killed before it says HELLO
    real, killed = WorkerProcess.spawn.__func__, []  # type: ignore[attr-defined]  # it is a classmethod

    def spawn(cls: type[WorkerProcess], *arguments: Any, **named: Any) -> WorkerProcess:
        worker: WorkerProcess = real(cls, *arguments, **named)
        if len(killed) == 1:
            os.kill(worker.process.pid, signal.SIGKILL)
            killed.append(worker.process.pid)
        return worker

    with LLM(config=fake.config() | {"executor": {"use": "mp"}}) as llm, caplog.at_level(logging.WARNING):
        monkeypatch.setattr(WorkerProcess, "spawn", classmethod(spawn))
        killed += workers()
        os.kill(killed[0], signal.SIGKILL)
        for _ in range(6000):
            if any(message.startswith("generation 2 ") for message in caplog.messages):
                break
            threading.Event().wait(0.01)
        else:
            raise AssertionError("nobody has seen it")
        assert llm.generate(["say:three"])[0].text == "three"
    *lost, over = [message for message in caplog.messages if "generation " in message]
    assert lost == [
        f"the workers of generation {number} are lost, void: no step; rank 0: the worker ended (signal 9)"
        for number in (0, 1)
    ]
    assert re.fullmatch(
        r"generation 2 begins with new workers, [\d.]+ s after the loss; "
        r"ready after [\d.]+ s: Starting [\d.]+, InitDevice [\d.]+, Loading [\d.]+, Warmup [\d.]+",
        over,
    )
    census.check()


def _wait_for_worker(seen: list[int]) -> list[int]:
    for _ in range(6000):
        if new := [pid for pid in workers() if pid not in seen]:
            return new
        threading.Event().wait(0.01)
    raise AssertionError("no new worker came")


def _wait_for_tokens(llm: LLM) -> None:
    """Until some more tokens have been committed."""
    before = llm.stats().committed_tokens
    for _ in range(6000):
        if llm.stats().committed_tokens > before + 5:
            return
        threading.Event().wait(0.01)
    raise AssertionError("no token came")


@pytest.mark.parametrize("executor", ["mp", "uni"])
def test_a_step_that_announces_itself_has_the_time_that_it_asks_for(
    fake: Installed, census: Census, executor: str
) -> None:  # X6
    config = fake.config(step_seconds=1.2, announce=60) | {
        "executor": {"use": executor},
        "deadlines": {"heartbeat": 0.1, "step": 0.4},
    }
    with LLM(config=config) as llm:
        assert llm.generate("say:ab", SamplingParams(max_tokens=2))[0].text == "ab"
        assert llm.status()["generation"] == "0"
    census.check()


def test_a_rank_with_other_options_is_named(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # P7
    """One whose environment made it another config, say."""
    real = MpExecutor.start

    def odd(self: MpExecutor, spec: Any) -> Any:
        (payload,) = spec.payloads
        return real(self, _replaced(spec, payload))

    monkeypatch.setattr(MpExecutor, "start", odd)
    host = PluginHost()
    with pytest.raises(StartFailed) as caught:
        start(plan(load(fake.config(), sets=["executor.use=mp"], environ={}), host), system_runtime(0), host)
    assert re.fullmatch(
        r"rank 0 loaded runner 'fake' \(fake-runner 1\.0, options \{.*\"step_seconds\":0\.5.*\}\), but the engine has "
        r"runner 'fake' \(fake-runner 1\.0, options \{.*\}\): every process must have the same packages, versions and "
        r"options",
        str(caught.value),
    ), str(caught.value)
    assert not workers()


def _replaced(spec: Any, payload: bytes) -> Any:
    import dataclasses

    import msgspec

    from enginebay.transport import decode_start_payload, encode_start_payload

    told = decode_start_payload(payload)
    config = json.loads(told.config)
    config["runner"]["options"]["step_seconds"] = 0.5
    EngineConfig.model_validate(config)
    return dataclasses.replace(
        spec, payloads=(encode_start_payload(msgspec.structs.replace(told, config=json.dumps(config))),)
    )


def run(fake: Installed, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``enginebay generate`` with worker processes."""
    return subprocess.run(
        [*ENGINEBAY, "generate", *arguments, *fake.arguments(**options), "--set", "executor.use=mp"],
        env=fake.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_the_user_sees_a_failed_start_once(fake: Installed, census: Census) -> None:  # X14, E2
    done = run(fake, "hi", fail="load_model")
    assert (done.returncode, done.stdout) == (3, "")
    assert re.search(
        r"^enginebay: rank 0 \(pid \d+, host .+\) failed in load_model: ValueError: asked to fail in load_model$",
        done.stderr.splitlines()[-1],
    )
    assert done.stderr.count("Traceback (most recent call last):") == 1
    assert done.stderr.count('raise ValueError(f"asked to fail in {method}")') == 1
    assert done.stderr.count("ValueError: asked to fail in load_model") == 2  # the traceback's last line, and ours
    census.check()


def test_phases_of_the_workers_are_in_the_engines_trace(fake: Installed, tmp_path: Path, census: Census) -> None:
    trace = tmp_path / "trace.jsonl"
    done = run(fake, "say:Oslo", "--trace", str(trace))
    assert (done.returncode, done.stdout) == (0, "Oslo\n"), done.stderr
    found = read_spans(trace)
    spans = {span.name: span for span in found}
    launch = spans["executor.launch"]
    for name in ("worker.spawn", "worker.init"):
        assert spans[name].parent_id == launch.span_id
        assert spans[name].resource["enginebay.role"] == "worker"
        assert spans[name].attributes["process.pid"] != launch.resource["process.pid"]
    for name in ("worker.init_device", "worker.load_model", "worker.profile", "worker.warm_up"):
        assert spans[name].parent_id == spans["worker.init"].span_id
    steps, ran = ({s.trace_id for s in found if s.name == name} for name in ("engine.step", "worker.execute_model"))
    assert ran
    assert ran <= steps
    census.check()


def test_a_lost_worker_that_cannot_be_replaced_is_exit_code_4(
    fake: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:  # E2, R5
    host = PluginHost()
    core = start(plan(load(fake.config(), sets=["executor.use=mp"], environ={}), host), system_runtime(0), host)
    try:
        core._parts.__dict__["respawn"] = None
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        watch = core._parts.watch
        for _ in range(6000):
            if watch._exits:
                break
            threading.Event().wait(0.01)
        with pytest.raises(WorkerLost) as caught:
            core.step()
        assert str(caught.value) == "the engine stopped: rank 0: the worker ended (signal 9)"
        assert caught.value.exit_code == 4
    finally:
        core.stop()

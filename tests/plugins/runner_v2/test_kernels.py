"""The kernels are built by a child: the engine runs meanwhile, changes over when they are there, and leaves nothing."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from enginebay_runner_v2 import kernels
from enginebay_runner_v2.kernels import Kernels
from enginebay_runner_v2.native import load
from support.served import eventually

HANGS = '#!/bin/sh\necho "$$" >> "{log}"\nexec sleep 600\n'
FAILS = "#!/bin/sh\necho 'file.cpp:1: error: no such thing' >&2\nexit 3\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def put(script: str) -> Path:
        path, log = tmp_path / "cxx", tmp_path / "cxx.log"
        path.write_text(script.format(log=log))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return log

    return put


def alive(log: Path) -> list[int]:
    return [pid for pid in map(int, log.read_text().split()) if psutil.pid_exists(pid)] if log.exists() else []


def test_a_build_that_is_left_ends_with_its_compilers(compiler: Callable[[str], Path], cache: Path) -> None:
    log = compiler(HANGS)
    one = Kernels("background", lambda seconds: None)
    one.begin()
    eventually(lambda: bool(alive(log)))
    assert not one.ready()
    builder = one._builder
    assert builder is not None
    process = psutil.Process(builder.pid)
    assert process.nice() == 19
    assert len(process.cpu_affinity()) == 1
    one.leave()
    one.leave()
    eventually(lambda: not alive(log) and not psutil.pid_exists(builder.pid))
    assert list(cache.glob("native/*/*.so")) == []


def test_what_a_killed_build_left_goes_with_the_next(
    compiler: Callable[[str], Path], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = compiler(HANGS)
    one = Kernels("wait", lambda seconds: None)
    one.begin()
    eventually(lambda: bool(alive(log)))
    one.leave()
    assert len(list(cache.glob("native/*/.build-*"))) == 1
    compiler(FAILS)
    announced: list[int] = []
    two = Kernels("wait", announced.append)
    with caplog.at_level(logging.WARNING):
        two.begin()
        two.wait()
        assert not two.ready()
    assert announced == [900]
    assert list(cache.glob("native/*/.build-*")) == []
    (message,) = caplog.messages
    assert message.startswith("the kernels could not be built, so steps run on torch's own operators: ")
    assert message.endswith("/cxx ended with 3: file.cpp:1: error: no such thing")
    two.begin()  # it is not tried again
    assert two._builder is None


def test_none_are_wanted(compiler: Callable[[str], Path]) -> None:
    log = compiler(HANGS)
    one = Kernels("off", lambda seconds: None)
    one.begin()
    one.wait()
    assert not one.ready()
    assert not log.exists()


def test_without_a_compiler_it_is_said_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/cxx")
    one = Kernels("background", lambda seconds: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one.begin()
            assert not one.ready()
    assert caplog.messages == [
        "no C++ compiler (c++, g++ or clang++; or set CXX), so steps run on torch's own operators",
    ]


def test_the_runner_changes_over_between_two_steps(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed before is in the cache, and the tokens go on as if nothing had happened."""
    found, params = kernels.find, SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = {"a": [5, 3, 8, 1], "b": list(range(1, 40))}

    def answers(change_at: int) -> tuple[dict[str, list[int]], str]:
        there = [False]
        monkeypatch.setattr(kernels, "find", lambda: found() if there[0] else None)
        monkeypatch.setattr(kernels, "why_not", lambda: None if there[0] else "not yet")
        with start_runner("v2", tiny("llama"), num_blocks=96, options={"compile": "background"}) as started:
            driver = RunnerDriver(started.runner, num_blocks=96, block_size=16)
            for name, prompt in prompts.items():
                driver.add(name, prompt, params)
            for step in range(12):
                if step == change_at:
                    there[0] = True
                    started.runner._kernels._wanted = True  # type: ignore[attr-defined]  # as if its build had ended
                    started.runner._kernels.begin()  # type: ignore[attr-defined]  # as above
                driver.step({name: len(prompts[name]) if not step else 1 for name in prompts})
            answers = {name: driver.requests[name].generated for name in prompts}
            return answers, started.runner.in_force()["execution"]

    load()  # built, if it must be
    never, python = answers(change_at=99)
    changed, native = answers(change_at=4)
    assert (python, native) == ("graph, python", "graph, native")
    assert changed == never


ENGINE = """
import threading, time
from enginebay_runner_v2.kernels import Kernels
def work():
    kernels = Kernels("background", lambda seconds: None)
    kernels.begin()
    keep.append(kernels)
keep = []
one = threading.Thread(target=work)
one.start()
one.join()
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_build_ends_with_its_process_however_that_ends(compiler: Callable[[str], Path], end: int) -> None:
    """With its compilers, and not before: a worker's thread may end, and another go on."""
    log = compiler(HANGS)
    engine = subprocess.Popen([sys.executable, "-P", "-c", ENGINE], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "begun\n"
    eventually(lambda: bool(alive(log)))
    [builder] = psutil.Process(engine.pid).children()
    engine.send_signal(end)
    engine.communicate(timeout=60)
    eventually(lambda: not alive(log) and not psutil.pid_exists(builder.pid))


def test_a_builder_that_is_killed_leaves_no_compilers(
    compiler: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    log = compiler(HANGS)
    one = Kernels("wait", lambda seconds: None)
    one.begin()
    eventually(lambda: bool(alive(log)))
    assert one._builder is not None
    psutil.Process(one._builder.pid).kill()
    with caplog.at_level(logging.WARNING):
        one.wait()
        assert not one.ready()
    eventually(lambda: not alive(log))
    assert caplog.messages == [
        "the kernels could not be built, so steps run on torch's own operators: the builder ended with -9"
    ]

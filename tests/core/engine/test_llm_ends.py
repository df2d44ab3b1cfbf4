"""How an ``LLM`` ends: closed, interrupted, forgotten in any thread, with a hung worker, at the interpreter's end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from enginebay import LLM, SamplingParams
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.front import front
from enginebay.engine.front.front import Request
from enginebay.engine.loop import EngineLoop
from enginebay.errors import EnginebayError, EngineDead
from enginebay.messages import RequestOutput
from enginebay.text import IncrementalDetokenizer
from support.fake_engine import FakeRunner
from support.fake_engines import Installed
from support.llms import threads

FEW = SamplingParams(max_tokens=4)
LONG = SamplingParams(max_tokens=400)


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, threads()
        time.sleep(0.005)


def without_owner(llm: LLM) -> tuple[Request, Collector]:
    """A request that runs, of which no stream keeps the engine."""
    request, collector = llm._front.request("a", LONG), Collector()
    llm._front.client.add_request(request.ask, collector, validated=True)
    return request, collector


def until_its_end(client: InProcessClient, collector: Collector) -> None:
    while True:
        collector.wait(client)


def test_one_that_is_forgotten_is_closed(fake: Installed) -> None:  # X13
    llm = LLM(fake.config())
    assert llm.generate("a", FEW)[0].text == "the "
    del llm
    eventually(lambda: not threads())


def test_its_exporters_end_with_one_that_is_forgotten(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Exporting:
        def shutdown(self) -> None:
            ended.append(threading.current_thread().name)

    monkeypatch.setattr(front, "setup", lambda config, role: Exporting())
    llm = LLM(fake.config())
    del llm
    eventually(lambda: not threads())
    assert ended == ["enginebay-engine"]


@pytest.mark.parametrize("where", ["worker", "engine"])
def test_the_engines_own_threads_may_collect_it(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:  # X13
    owner, method = {"worker": (FakeRunner, "execute_model"), "engine": (IncrementalDetokenizer, "push")}[where]
    inner = getattr(owner, method)
    llm = LLM(fake.config(step_seconds=0.01))
    _, collector = without_owner(llm)
    client, gone = llm._front.client, weakref.ref(llm)
    circle: list[object] = [llm]
    circle.append(circle)
    collected: list[tuple[str, float]] = []

    def collecting(self: object, given: object) -> object:
        if not collected:
            begun = time.monotonic()
            gc.collect()
            collected.append((threading.current_thread().name, time.monotonic() - begun))
        return inner(self, given)

    gc.disable()
    try:
        monkeypatch.setattr(owner, method, collecting)
        del llm, circle
        with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one$"):
            until_its_end(client, collector)
    finally:
        gc.enable()
    eventually(lambda: not threads())
    assert gone() is None
    ((name, seconds),) = collected
    assert name.startswith("enginebay-uni" if where == "worker" else "enginebay-engine")
    assert seconds < 2.0


def test_the_engines_own_thread_may_close_it(fake: Installed) -> None:
    class Closing:
        failed: EnginebayError | None = None

        def put(self, output: RequestOutput) -> None:
            llm.close()

        def fail(self, error: EnginebayError) -> None:
            self.failed = error

    llm, sink = LLM(fake.config()), Closing()
    llm._front.client.add_request(llm._front.request("a", LONG).ask, sink)
    eventually(lambda: not threads())
    assert str(sink.failed) == "the engine is closed; make a new one"


def test_a_stream_keeps_its_engine(fake: Installed) -> None:
    gc.disable()  # what is left when it has ended must not need it
    try:
        outputs = list(LLM(fake.config()).stream("say:hello"))
        assert "".join(output.text for output in outputs) == "hello"
        message = {"role": "user", "content": "say:hi"}
        assert "".join(output.text for output in LLM(fake.config()).chat_stream([message])) == "hi"
        dropped = LLM(fake.config()).stream("a", LONG)
        next(dropped)
        del dropped
        eventually(lambda: not threads())
    finally:
        gc.enable()


@pytest.mark.parametrize("stop", [0.2, 0.6])
def test_a_stop_has_one_deadline_also_when_the_worker_hangs(fake: Installed, stop: float) -> None:  # X13
    llm = LLM(fake.config(step_seconds=3.0), sets=[f"deadlines.stop={stop}"])
    stream = llm.stream("a")
    time.sleep(0.1)
    begun = time.monotonic()
    llm.close()
    assert stop - 0.05 < time.monotonic() - begun < stop + 0.5
    assert "enginebay-engine" not in threads()  # it has not waited once more on its own
    llm.close()
    assert time.monotonic() - begun < stop + 0.6
    with pytest.raises(EngineDead):
        next(stream)
    eventually(lambda: not threads())  # the worker's thread ends with its step


def test_a_step_that_ends_in_time_is_not_cut_off(fake: Installed) -> None:
    llm = LLM(fake.config(step_seconds=0.3), sets=["deadlines.stop=5"])
    stream = llm.stream("a")
    time.sleep(0.1)
    llm.close()
    assert not threads()
    with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one$"):
        list(stream)


def test_a_close_that_was_interrupted_can_be_called_again(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: EngineLoop, timeout: float) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    llm = LLM(fake.config())
    with monkeypatch.context() as patch:
        patch.setattr(EngineLoop, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.close()
    llm.close()
    assert not threads()


PROGRAM = """
import os, sys, time
from enginebay import LLM, SamplingParams
from enginebay.errors import EngineDead
from support.fake_engine import fake_config
from pathlib import Path

llm = LLM(fake_config(Path(sys.argv[1]), step_seconds=0.01))
stream = llm.stream("a", SamplingParams(max_tokens=400))
next(stream)
"""

FORKED = """
child = os.fork()
if not child:
    begun, told = time.monotonic(), set()
    calls = [lambda: llm.generate("a"), llm.stats, lambda: next(stream), lambda: llm.stream("a")]
    for call in calls + [lambda: llm.abort(stream.request_id)]:
        try:
            call()
        except EngineDead as error:
            told.add(str(error).replace(str(os.getppid()), "PARENT"))
    llm.close()
    print(*told, flush=True)
    sys.exit(time.monotonic() - begun > 1.0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(llm.generate("say:still here")[0].text)
"""


def run(fake: Installed, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(fake.model)],
        env=fake.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_end_of_the_interpreter_ends_what_nobody_closed(fake: Installed) -> None:  # X13
    assert run(fake, PROGRAM + "print('bye')") == "bye\n"


def test_a_forked_child_is_told_at_once_and_leaves_its_parents_engine_alone(fake: Installed) -> None:
    ignore = "import warnings; warnings.filterwarnings('ignore', category=DeprecationWarning)\n"
    assert run(fake, ignore + PROGRAM + FORKED) == (
        "the engine runs in process PARENT, and this process was forked from it, which takes none of its threads "
        "along: make an engine here, or fork before the first is made\n0\nstill here\n"
    )

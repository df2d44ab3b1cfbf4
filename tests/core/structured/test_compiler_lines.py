"""The threads and children that compile: what they remember, what ends them, and who waits for whom."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import psutil
import pytest

from enginebay.messages import StructuredOutput
from enginebay.structured import GrammarUnavailable, HelperCompiler
from enginebay.structured._trying import TooSlow
from enginebay.text import Tokenizer

from .conftest import PATIENCE, compiler_of

LEFT_OUT = "change that part of the schema, or leave it out"
LARK = "write it in Lark from the rule start, or in GBNF from the rule root, and simpler where it is too large"
CLOSED = "the engine is closed"


def chain(length: int) -> str:
    """A grammar of rules that each lead to the next: the library recurses once for each."""
    rules = [f'r{i}: "a" r{i + 1} | "b" r{i + 2}' for i in range(length)]
    return "\n".join(["start: r0", *rules, f'r{length}: "x"', f'r{length + 1}: "y"'])


def _asked(compiler: HelperCompiler, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the child for new shapes will have been asked to compile."""
    helper, asked = compiler._lanes[0].trial.helper, []
    call = helper.call

    def noted(request: dict[str, Any]) -> dict[str, Any]:
        if "kind" in request:
            asked.append(str(request["value"]))
        return call(request)

    monkeypatch.setattr(helper, "call", noted)
    return asked


def test_the_child_compiles_a_shape_once_and_failures_are_remembered(  # robustness 7: failures are cached
    compiler: HelperCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _asked(compiler, monkeypatch)
    for _ in range(3):
        assert compiler.compile(StructuredOutput(regex="once")).exception(PATIENCE) is None
    errors = [compiler.compile(StructuredOutput(regex="(once")).exception(PATIENCE) for _ in range(3)]
    assert asked == ["once", "(once"]
    assert len({(type(error), str(error)) for error in errors}) == 1
    assert len(set(map(id, errors))) == 3, "each its own: whoever raises one adds to its traceback"


def test_what_is_remembered_is_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compiler_of(tokenizer, kept=2)
    asked = _asked(compiler, monkeypatch)
    try:
        for regex in ("one", "two", "three", "three", "two", "one"):
            assert compiler.compile(StructuredOutput(regex=regex)).exception(PATIENCE) is None
    finally:
        compiler.close()
    assert asked == ["one", "two", "three", "one"]


def test_what_is_no_grammars_fault_is_not_remembered(
    own_compiler: HelperCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, trial = StructuredOutput(regex="a"), own_compiler._lanes[0].trial
    with monkeypatch.context() as patched:
        patched.setattr(trial, "_tokenizer", lambda: 1 / 0)
        assert isinstance(own_compiler.compile(shape).exception(PATIENCE), GrammarUnavailable)
    assert own_compiler.compile(shape).exception(PATIENCE) is None


def test_it_goes_on_after_a_child_that_died(own_compiler: HelperCompiler) -> None:
    error = own_compiler.compile(StructuredOutput(ebnf=chain(4000))).exception(PATIENCE)
    assert str(error) == f"structured.ebnf cannot be used: compiling it was killed by SIGSEGV; {LARK}"
    assert own_compiler.compile(StructuredOutput(regex="a")).exception(PATIENCE) is None


def test_one_that_takes_too_long(tokenizer: Tokenizer) -> None:
    compiler = compiler_of(tokenizer, seconds=0.01)  # it takes a second
    try:
        error = compiler.compile(StructuredOutput.of_schema({"multipleOf": 99991})).exception(PATIENCE)
        why = "structured.json_schema cannot be used: compiling it took longer than 0.01 s and was stopped"
        assert str(error) == f"{why}; {LEFT_OUT}"
    finally:
        compiler.close()


def test_one_that_takes_too_much_memory(tokenizer: Tokenizer) -> None:
    compiler = compiler_of(tokenizer, memory=16 << 20)
    try:
        error = compiler.compile(StructuredOutput.of_schema({"multipleOf": 99991})).exception(PATIENCE)
    finally:
        compiler.close()
    why = "structured.json_schema cannot be used: compiling it was killed by SIGABRT (out of memory?)"
    assert str(error) == f"{why}; {LEFT_OUT}"


def test_a_child_that_is_killed_between_calls(own_compiler: HelperCompiler) -> None:
    assert own_compiler.compile(StructuredOutput(regex="a1")).exception(PATIENCE) is None
    pid = own_compiler._lanes[0].trial.helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert own_compiler.compile(StructuredOutput(regex="a2")).exception(PATIENCE) is None


class Gate:
    """Shapes that begin with "slow" stay in the child until it is opened."""

    def __init__(self, compiler: HelperCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.tried: list[list[str]] = [[], []]
        for number, lane in enumerate(compiler._lanes):
            monkeypatch.setattr(lane.trial, "definition", self._like(lane.trial.definition, number))

    def _like(self, definition: Callable[[StructuredOutput], str], number: int) -> Callable[[StructuredOutput], str]:
        def wrapped(structured: StructuredOutput) -> str:
            assert structured.regex is not None
            self.tried[number].append(structured.regex)
            if structured.regex.startswith("slow"):
                if number == 0:
                    raise TooSlow("compiling it took longer than 0.5 s and was stopped")
                assert self.open.wait(PATIENCE)
            return definition(structured)

        return wrapped


@pytest.fixture
def gate(own_compiler: HelperCompiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(own_compiler, monkeypatch)
    yield gate
    gate.open.set()  # else the compiler could not be closed


def _of(*regexes: str) -> list[StructuredOutput]:
    return [StructuredOutput(regex=regex) for regex in regexes]


def test_slow_shapes_hold_up_no_others(own_compiler: HelperCompiler, gate: Gate) -> None:  # S15
    """Neither what is known, nor what is new; and they come out as ever, again and again."""
    [known] = _of("known")
    own_compiler.compile(known).result(PATIENCE)
    slow = [own_compiler.compile(one) for one in _of("slow1", "slow2", "slow3")]
    for one in (known, *_of("new1", "new2"), known):
        own_compiler.compile(one).result(PATIENCE)
    assert not any(future.done() for future in slow)
    gate.open.set()
    for future in slow:
        future.result(PATIENCE)
    own_compiler.compile(_of("slow1")[0]).result(PATIENCE)
    assert gate.tried == [["known", "slow1", "slow2", "slow3", "new1", "new2"], ["slow1", "slow2", "slow3"]]


def test_what_is_slow_here_too_is_compiled_beside_the_others(
    own_compiler: HelperCompiler, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.open.set()
    for one in _of("slow", "known"):
        own_compiler.compile(one).result(PATIENCE)
    build, threads = own_compiler._build, []

    def noted(structured: StructuredOutput, *rest: Any) -> None:
        threads.append((structured.regex, threading.current_thread().name))
        build(structured, *rest)

    monkeypatch.setattr(own_compiler, "_build", noted)
    for one in _of("slow", "known"):
        own_compiler.compile(one).result(PATIENCE)
    assert threads == [("slow", "enginebay-grammars-slow"), ("known", "enginebay-grammars")]


def test_one_that_needs_more_than_the_first_moment(tokenizer: Tokenizer) -> None:
    """It is stopped in the child for new shapes, and compiles in the one for slow shapes."""
    compiler = compiler_of(tokenizer, quick_seconds=0.01)  # it takes a second
    try:
        first = compiler.compile(StructuredOutput.of_schema({"multipleOf": 99991}))
        compiler.compile(StructuredOutput(regex="a")).result(PATIENCE)
        first.result(PATIENCE)
        assert None not in {lane.trial.helper.pid for lane in compiler._lanes}
    finally:
        compiler.close()


def test_many_who_ask_for_the_same(own_compiler: HelperCompiler, gate: Gate) -> None:
    """It is tried once, and each has a state of its own; who gave up has none."""
    futures = [own_compiler.compile(_of("slow")[0]) for _ in range(5)]
    assert futures[2].cancel()
    gate.open.set()
    states = [future.result(PATIENCE) for number, future in enumerate(futures) if number != 2]
    assert len(set(map(id, states))) == 4
    assert gate.tried == [["slow"], ["slow"]]
    with pytest.raises(CancelledError):
        futures[2].result(0)


def test_what_is_cancelled_is_not_compiled(own_compiler: HelperCompiler, gate: Gate) -> None:
    first, second, third = (own_compiler.compile(one) for one in _of("slow1", "slow2", "slow3"))
    assert second.cancel(), "the first is still being compiled"
    gate.open.set()
    for future in (first, third):
        future.result(PATIENCE)
    assert gate.tried[1] == ["slow1", "slow3"]
    with pytest.raises(CancelledError):
        second.result(0)
    assert own_compiler.compile(_of("slow2")[0]).exception(PATIENCE) is None, "who asks later is answered"


def test_the_end_before_it_compiles(tokenizer: Tokenizer) -> None:
    compiler = compiler_of(tokenizer)
    futures = [compiler.compile(StructuredOutput(regex=f"a{n}")) for n in range(3)]
    compiler.close()
    compiler.close()
    _are_closed(compiler, futures)


# each part of it takes part in a product of automata: minutes, if nobody stopped it
ENDLESS = [{"type": "string", "pattern": f".*{chr(97 + n)}.{{0,50}}x"} for n in range(25)]


@pytest.mark.parametrize("quick_seconds", [0.01, PATIENCE], ids=["slow lane", "first lane"])
def test_the_end_while_it_compiles(tokenizer: Tokenizer, quick_seconds: float) -> None:
    """No child is started again for what the end has interrupted."""
    before = psutil.Process().children()
    compiler = compiler_of(tokenizer, quick_seconds=quick_seconds, seconds=PATIENCE)
    lane = compiler._lanes[0 if quick_seconds == PATIENCE else 1]
    shape = StructuredOutput.of_schema({"allOf": ENDLESS})
    futures = [compiler.compile(shape), *(compiler.compile(StructuredOutput(regex="slow")) for _ in range(2))]
    _until(lambda: lane.trial.helper.pid is not None and _computes(lane.trial.helper.pid))
    compiler.close()
    assert psutil.Process().children() == before
    _are_closed(compiler, futures[:1])
    assert futures[1].done()


def _are_closed(compiler: HelperCompiler, futures: list[Any]) -> None:
    for future in [*futures, compiler.compile(StructuredOutput(regex="new"))]:
        error = future.exception(PATIENCE)
        assert (type(error), str(error)) == (GrammarUnavailable, CLOSED)
    assert {lane.trial.helper.pid for lane in compiler._lanes} == {None}
    threads = [line._thread for line in (compiler._known, *(lane.line for lane in compiler._lanes))]
    assert not any(thread.is_alive() for thread in threads if thread is not None)


def _computes(pid: int) -> bool:
    """Whether it has done more than to start and to read a small vocabulary."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system > 1.0


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)

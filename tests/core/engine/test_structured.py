"""Requests under grammars in the core: held until ready, advanced at the commit, ended alone when it cannot go on."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.engine.grammars import Grammars
from enginebay.errors import DuplicateRequest
from enginebay.messages import FinishReason, SchedulerOutput, StructuredOutput
from enginebay.structured import GrammarStore
from support.clock import FakeClock, fake_runtime
from support.fake_engine import FEATURES, FakeEngine
from support.fake_grammars import EOS, FakeCompiler, a_store

YES_NO = StructuredOutput(choice=("yes", "no", "not at all"))


def engine_of(compiler: FakeCompiler | None = None, *, store: GrammarStore | None = None, **parts: Any) -> FakeEngine:
    """A core whose runner draws what the prompt asks for where the mask allows it, else the lowest that it does."""
    grammars = Grammars(store or a_store(compiler or FakeCompiler()))
    return FakeEngine(features=FEATURES, grammars=grammars, **parts)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_answer_keeps_its_shape(depth: int) -> None:
    engine = engine_of(depth=depth)
    engine.add("fits", "say:not at all", structured=YES_NO)
    engine.add("bent", "say:maybe", structured=YES_NO)
    engine.add("free", "say:maybe")
    engine.run()
    assert engine.texts == {"fits": "not at all", "bent": "not at all", "free": "maybe"}
    assert {last.finish_reason for last in engine.last.values()} == {FinishReason.STOP}
    assert engine.tokens["bent"][-1] == EOS
    assert len(engine.core._parts.grammars._opened) == 0, "nothing is kept of who has ended"
    assert engine.kv.num_free_blocks == 64


def test_a_request_waits_for_its_grammar_and_no_other_does() -> None:
    compiler = FakeCompiler(held=True)
    engine = engine_of(compiler)
    engine.add("shaped", "say:yes", structured=YES_NO)
    engine.add("free", "say:maybe")
    while "free" not in engine.last:
        engine.step()
    assert engine.texts == {"free": "maybe"}
    assert engine.core.has_work()
    assert engine.core.stats().unfinished == 1
    assert [step.num_scheduled_tokens for step in engine.executor.steps if "shaped" in step.num_scheduled_tokens] == []
    compiler.go()
    engine.run()
    assert engine.texts["shaped"] == "yes"


def test_an_id_is_in_use_while_its_grammar_is_compiled() -> None:
    engine = engine_of(FakeCompiler(held=True))
    engine.add("a", structured=YES_NO)
    with pytest.raises(DuplicateRequest):
        engine.add("a")


def test_abort_while_it_is_compiled() -> None:
    compiler = FakeCompiler(held=True)
    engine = engine_of(compiler)
    engine.add("a", structured=YES_NO)
    engine.step()
    engine.core.abort(["a"])
    engine.run()
    assert engine.last["a"].finish_reason is FinishReason.ABORT
    assert compiler.waiting[0][1].cancelled()
    compiler.go()
    engine.add("b", "say:no", structured=YES_NO)
    compiler.go()
    engine.run()
    assert engine.texts["b"] == "no"


def test_a_deadline_passes_while_it_is_compiled() -> None:
    clock = FakeClock()
    engine = engine_of(FakeCompiler(held=True), runtime=fake_runtime(clock))
    engine.add("a", structured=YES_NO, ask={"timeout": 5.0})
    engine.step()
    clock.time += 6.0
    engine.run()
    assert (engine.last["a"].finish_reason, engine.last["a"].error) == (FinishReason.ERROR, "deadline")


def test_one_that_cannot_compile_ends_alone() -> None:  # S15
    engine = engine_of()
    engine.add("bad", structured=StructuredOutput(regex="(a"))
    engine.add("good", "say:yes", structured=YES_NO)
    engine.add("free", "say:maybe")
    engine.run()
    assert (engine.last["bad"].finish_reason, engine.last["bad"].error) == (
        FinishReason.ERROR,
        "structured.regex cannot be used: (a",
    )
    assert engine.last["bad"].error_param == "structured.regex"
    assert (engine.texts["good"], engine.texts["free"]) == ("yes", "maybe")
    assert [
        list(step.num_scheduled_tokens) for step in engine.executor.steps if "bad" in step.num_scheduled_tokens
    ] == []


@pytest.mark.parametrize("depth", [1, 2])
def test_one_that_cannot_go_on_ends_alone(depth: int) -> None:  # S15
    engine = engine_of(FakeCompiler(stuck=[b"ye"]), depth=depth)
    engine.add("stuck", "say:yes", structured=YES_NO)
    engine.add("good", "say:no", structured=YES_NO)
    engine.run()
    assert (engine.last["stuck"].finish_reason, engine.last["stuck"].error) == (
        FinishReason.ERROR,
        "its answer cannot go on under its grammar: it is too complex",
    )
    assert (engine.texts["stuck"], engine.texts["good"]) == ("ye", "no")
    assert engine.kv.num_free_blocks == 64


def test_a_runner_that_does_not_look_at_the_masks() -> None:  # S15
    engine = engine_of()
    engine.executor._draw = lambda one, grammar: engine.executor.draw(one)  # type: ignore[method-assign]  # at fault
    engine.add("a", "say:yet", structured=YES_NO)
    engine.add("b", "say:y", structured=YES_NO)
    engine.add("free", "say:maybe")
    engine.run()
    begin = "its answer cannot go on under its grammar: token"
    assert engine.last["a"].error == f"{begin} 116 does not fit its grammar"
    assert engine.last["b"].error == f"{begin} 257 ends the answer before its grammar does"
    assert (engine.texts["a"], engine.texts["b"], engine.texts["free"]) == ("ye", "y", "maybe")


def test_choices_have_states_of_their_own() -> None:
    engine = engine_of()
    engine.add("a", "say:no%", structured=StructuredOutput(choice=("no0", "no1")), n=2, temperature=1.0)
    engine.run()
    assert engine.texts == {"a": "no0", "a/1": "no1"}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("void", range(0, 14, 2))
def test_a_void_changes_no_token(depth: int, void: int) -> None:
    """After a setback the grammar stands where the ledger does, whether the request ran or waited."""
    compiler = FakeCompiler(held=True)
    engine = engine_of(compiler, depth=depth, max_num_batched_tokens=8)

    def before(output: SchedulerOutput) -> None:
        engine.executor.reply_generation = 77 if output.step == void else None
        if output.step == 9:
            compiler.go()

    engine.executor.before = before
    compiler.held = False
    for name, prompt in (("a", "a long prompt, say:not at all"), ("b", "say:maybe")):
        engine.add(name, prompt, structured=YES_NO)
    compiler.held = True
    engine.add("late", "say:yes", structured=StructuredOutput(choice=("yes",)))
    engine.add("free", "say:the others go on for a while")
    engine.run()
    assert engine.texts == {"a": "not at all", "b": "not at all", "late": "yes", "free": "the others go on for a while"}
    assert engine.kv.num_free_blocks == 64


def test_speculation_keeps_to_the_shape() -> None:
    def propose(prompt: Any, output: Any, most: int) -> tuple[int, ...]:
        return tuple(b"not at all")[len(output) : len(output) + most]

    texts = []
    for way in (None, propose):
        engine = engine_of(propose=way)
        for name, prompt in (("a", "say:not at all"), ("b", "say:maybe"), ("c", "say:not now")):
            engine.add(name, prompt, structured=YES_NO)
        engine.run()
        texts.append(engine.texts)
    assert texts[0] == texts[1] == {"a": "not at all", "b": "not at all", "c": "not at all"}


def test_an_answer_that_is_cut_says_so() -> None:
    engine = engine_of()
    engine.add("a", "say:not at all", structured=YES_NO, max_tokens=5)
    engine.run()
    assert (engine.texts["a"], engine.last["a"].finish_reason) == ("not a", FinishReason.LENGTH)


def test_the_end_of_the_engine_is_the_compilers() -> None:
    compiler = FakeCompiler(held=True)
    engine = engine_of(compiler)
    engine.add("a", structured=YES_NO)
    engine.step()
    engine.core._parts.grammars.stop()
    engine.core.stop()
    assert engine.core._requests.take_outputs()[-1].finish_reason is FinishReason.ABORT
    assert compiler.closed == 1


def test_ranks_that_schedule_alike_wait_for_a_grammar() -> None:
    """None goes ahead: how long a grammar takes would be another thing on each."""
    compiler = FakeCompiler(held=True)
    waited: list[float | None] = []

    class Clock(FakeClock):
        def wait_future(self, future: Any, deadline: float | None) -> Any:
            if not future.done():
                waited.append(deadline)
                compiler.go()
            return super().wait_future(future, deadline)

    runtime = fake_runtime(Clock())
    grammars = Grammars(a_store(compiler), agreed=runtime)
    engine = FakeEngine(features=FEATURES, grammars=grammars, runtime=runtime)
    engine.add("a", "say:yes", structured=YES_NO)
    engine.step()
    assert waited == [220.0], "100 s and a bound"
    assert len(engine.executor.steps) == 1, "it runs in the first step"
    engine.run()
    assert engine.texts["a"] == "yes"


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("guessing", [False, True])
def test_what_else_ends_an_answer_does_so_under_a_shape(depth: int, guessing: bool) -> None:  # S7, S8
    """Whatever is in flight or proposed: a stop string, a length, a minimum, and an answer that another one begins."""

    def propose(prompt: Any, output: Any, most: int) -> tuple[int, ...]:
        return tuple(b"not at all")[len(output) : len(output) + most]

    engine = engine_of(depth=depth, propose=propose if guessing else None)
    engine.add("one token", "say:not at all", structured=YES_NO, max_tokens=1)
    engine.add("stopped", "say:not at all", structured=YES_NO, stop=("t a",))
    engine.add("at the second", "say:not at all", structured=YES_NO, stop=("t a",), min_tokens=6)
    engine.add("a minimum", "say:no", structured=YES_NO, min_tokens=50)
    engine.add("begins another", "say:no", structured=YES_NO)
    engine.run()
    assert engine.texts == {
        "one token": "n",
        "stopped": "no",
        "at the second": "not a",
        "a minimum": "no",
        "begins another": "no",
    }
    ends = {name: last.finish_reason for name, last in engine.last.items()}
    assert ends.pop("one token") is FinishReason.LENGTH
    assert set(ends.values()) == {FinishReason.STOP}
    assert len(engine.core._parts.grammars._opened) == 0
    assert engine.kv.num_free_blocks == 64

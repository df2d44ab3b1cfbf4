"""Schedules that contradict themselves, the requests, or what was said before: the scheduler is named, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from enginebay.engine.annexes import MAX_ANNEX
from enginebay.engine.grammars import Grammars
from enginebay.errors import EngineDead, PolicyFailed
from enginebay.messages import GrammarOutput, ModelRunnerOutput, RunningRequest, SchedulerOutput, StructuredOutput
from support.fake_engine import FEATURES, Bytes, FakeEngine, answer_of
from support.fake_grammars import FakeCompiler, a_store
from support.whole_scheduler import OverMechanics

Lie = Callable[[SchedulerOutput], SchedulerOutput]


def first(part: str, **fields: Any) -> Lie:
    """The first request of that part is told with these fields."""

    def lie(out: SchedulerOutput) -> SchedulerOutput:
        told = getattr(out, part)
        return replace(out, **{part: (replace(told[0], **fields), *told[1:])}) if told else out

    return lie


def begun(change: Callable[[SchedulerOutput], SchedulerOutput]) -> Lie:
    """Only once something runs."""
    return lambda out: change(out) if out.running else out


def skipped(out: SchedulerOutput) -> SchedulerOutput:
    """A chunk of a prompt is begun two tokens before its end."""
    for index, one in enumerate(out.running):
        if (count := out.num_scheduled_tokens[one.request_id]) > 2:
            later = replace(one, num_computed_tokens=one.num_computed_tokens + count - 2)
            counts = {**out.num_scheduled_tokens, one.request_id: 2}
            return replace(
                out, running=(*out.running[:index], later, *out.running[index + 1 :]), num_scheduled_tokens=counts
            )
    return out


def also_running(out: SchedulerOutput) -> SchedulerOutput:
    """A new one goes on in the very step."""
    more = [RunningRequest(request_id=one.request_id, num_computed_tokens=one.num_computed_tokens) for one in out.new]
    return replace(out, running=(*out.running, *more))


LIES: dict[str, Lie] = {
    "a part of a prompt passed over": skipped,
    "one that goes on twice": lambda out: replace(out, running=out.running * 2),
    "one that is new and goes on": also_running,
    "the same blocks for all": lambda out: replace(
        out, new=tuple(replace(one, block_ids=(tuple(range(len(one.block_ids[0]))),)) for one in out.new)
    ),
    "a block for all places": lambda out: replace(
        out, new=tuple(replace(one, block_ids=(one.block_ids[0][:1] * len(one.block_ids[0]),)) for one in out.new)
    ),
    "one more block, and it has it already": lambda out: replace(
        out, running=tuple(replace(one, new_block_ids=((63,),)) for one in out.running)
    ),
    "a token that nobody drew": begun(
        lambda out: replace(
            out,
            running=tuple(replace(one, new_token_ids=(7,)) for one in out.running),
            num_scheduled_tokens={one: count + 1 for one, count in out.num_scheduled_tokens.items()},
        )
    ),
    "another choice": lambda out: replace(out, new=tuple(replace(one, choice=one.choice + 5) for one in out.new)),
    "an extra that nobody sent": first("new", extra={"x": b"y"}),
    "the end of a stranger": lambda out: replace(out, finished=(*out.finished, "nobody")),
    "an end that is told twice": lambda out: replace(out, finished=out.finished * 2),
    "an annex whose names are too large": lambda out: replace(out, annex={"\U0001f600" * (MAX_ANNEX // 4): b"x"}),
    "one token too many": lambda out: replace(
        out, num_scheduled_tokens={one: count + 1 for one, count in out.num_scheduled_tokens.items()}
    ),
    "the same new one twice": lambda out: replace(out, new=out.new + out.new),
    "computed before it begins": first("running", num_computed_tokens=-1),
    "computed further than it is": first("running", num_computed_tokens=10**6),
    "tokens that nobody drew": first("running", new_token_ids=(65, 66)),
    "a live one ended": begun(lambda out: replace(out, finished=tuple(one.request_id for one in out.running))),
    "a live one preempted": begun(lambda out: replace(out, preempted=tuple(one.request_id for one in out.running))),
    "a stranger preempted": lambda out: replace(out, preempted=("never",)),
    "one without a shape constrained": lambda out: replace(out, constrained=tuple(out.num_scheduled_tokens)),
    "an annex that is too large": lambda out: replace(out, annex={"x": bytes(MAX_ANNEX)}),
    "an annex of something else": lambda out: replace(out, annex={"x": "text"}),
    "another group of blocks": first("running", new_block_ids=((1,), (2,))),
}


def engine_that(lie: Lie, **parts: Any) -> FakeEngine:
    class Lying(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            return lie(super().schedule())

    return FakeEngine(scheduler=Lying, features=FEATURES, max_num_batched_tokens=24, **parts)


PROMPTS = {"a": "say:" + "so it goes on, and on, and on", "b": "say:no, it does not"}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_ends_the_engine_with_the_scheduler_s_name(lie: Lie, depth: int) -> None:
    engine = engine_that(lie, depth=depth)
    engine.add("a", PROMPTS["a"], max_tokens=12)
    engine.add("b", PROMPTS["b"], max_tokens=5, n=2, temperature=1.0)
    with pytest.raises(PolicyFailed, match=r"^scheduler 'fake' 1\.0") as dead:
        engine.run()
    assert engine.generation.current == 0, "no void mends it"
    assert {one.error for one in engine.last.values()} - {None} <= {str(dead.value)}
    for name, text in engine.texts.items():
        assert answer_of(PROMPTS[name[0]].encode()).startswith(text), "no token came of it"


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_told_of_requests_may_come_in_another_order_than_their_tokens(depth: int) -> None:
    def other_way_round(out: SchedulerOutput) -> SchedulerOutput:
        return replace(out, new=out.new[::-1], running=out.running[::-1])

    def answers(engine: FakeEngine) -> dict[str, str]:
        for request_id, most in (("a", 12), ("b", 5), ("c", 9)):
            engine.add(request_id, "say:" + request_id * most, max_tokens=most, prompt_logprobs=0)
        engine.run()
        return engine.texts

    assert answers(engine_that(other_way_round, depth=depth)) == answers(engine_that(lambda out: out, depth=depth))


def test_one_whose_grammar_is_not_ready_cannot_be_scheduled() -> None:
    compiler = FakeCompiler(held=True)

    class Eager(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            out = super().schedule()
            if not out.new:
                return out
            return replace(
                out,
                new=(*out.new, replace(out.new[0], request_id="held")),
                num_scheduled_tokens={**out.num_scheduled_tokens, "held": 2},
            )

    engine = FakeEngine(
        scheduler=Eager, features=FEATURES | {"grammar"}, grammars=Grammars(a_store(compiler)), detokenizer=Bytes
    )
    engine.add("held", structured=StructuredOutput(choice=("x",)), max_tokens=4)
    engine.add("a", max_tokens=4)
    with pytest.raises(PolicyFailed, match="'held' in step 0"):
        engine.run()


MASKS: dict[str, Any] = {
    "no bytes": GrammarOutput(request_ids=("a",), bitmask="text", words_per_row=1),  # type: ignore[arg-type]  # the lie
    "one id": GrammarOutput(request_ids="a", bitmask=b"", words_per_row=1),  # type: ignore[arg-type]  # the lie
    "no count": GrammarOutput(request_ids=("a",), bitmask=b"", words_per_row=1.0),  # type: ignore[arg-type]  # the lie
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_that_workers_cannot_read_are_the_scheduler_s(mask: GrammarOutput) -> None:
    class Masking(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            out = super().schedule()
            return replace(out, constrained=tuple(out.num_scheduled_tokens))

        def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
            return mask

    engine = FakeEngine(scheduler=Masking, features=FEATURES)
    engine.add("a", max_tokens=4)
    with pytest.raises(PolicyFailed, match=r"^scheduler 'fake' 1\.0 returned from get_grammar_bitmask what workers"):
        engine.run()


WRONG: dict[str, tuple[GrammarOutput, str]] = {
    "too few bytes": (
        GrammarOutput(request_ids=("a", "b"), bitmask=b"\1", words_per_row=1),
        "1 bytes for 2 masks of 1",
    ),
    "no words": (GrammarOutput(request_ids=("a", "b"), bitmask=b"", words_per_row=0), "masks of 0 words"),
    "minus one": (GrammarOutput(request_ids=("a", "b"), bitmask=b"", words_per_row=-1), "masks of -1 words"),
    "a stranger": (
        GrammarOutput(request_ids=("a", "b", "z"), bitmask=bytes(108), words_per_row=9),
        "a mask for request 'z', which is not in the step",
    ),
    "one is missing": (
        GrammarOutput(request_ids=("a",), bitmask=b"\xff" * 36, words_per_row=9),
        "0 masks for request 'b', which draws at 1 positions",
    ),
    "one is there twice": (
        GrammarOutput(request_ids=("a", "b", "b"), bitmask=bytes(108), words_per_row=9),
        "2 masks for request 'b', which draws at 1 positions",
    ),
}


@pytest.mark.parametrize(("mask", "message"), WRONG.values(), ids=WRONG)
def test_masks_of_another_step_or_size_are_the_scheduler_s(mask: GrammarOutput, message: str) -> None:
    class Masking(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            out = super().schedule()
            return replace(out, constrained=tuple(out.num_scheduled_tokens))

        def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
            return mask

    engine = FakeEngine(scheduler=Masking, features=FEATURES)
    engine.add("a", max_tokens=4)
    engine.add("b", max_tokens=4)
    with pytest.raises(PolicyFailed) as failed:
        engine.run()
    assert str(failed.value).startswith(f"scheduler 'fake' 1.0 returned from get_grammar_bitmask {message}")
    assert not any(engine.texts.values())


def test_an_annex_of_the_runner_s_is_bounded_too() -> None:
    engine = FakeEngine()
    finish_step = engine.executor.table.finish_step

    def swollen(*arguments: Any, **more: Any) -> ModelRunnerOutput:
        return replace(finish_step(*arguments, **more), annex={"x": bytes(MAX_ANNEX)})

    engine.executor.table.finish_step = swollen  # type: ignore[method-assign]  # the runner that errs
    engine.add("a", max_tokens=4)
    with pytest.raises(
        EngineDead, match=r"runner 'fake' 1\.0 answered step 0 with an annex of 1048577 bytes, and 1048576"
    ):
        engine.run()


def test_one_id_may_be_aborted_twice_at_once() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=4)
    engine.core.abort(["a", "a"])
    engine.run()
    assert engine.last["a"].finish_reason == "abort"

"""Steps in flight: what is sent when, whose answer counts, and that no token depends on it.

The fake executor computes at once, so the order of its calls is the order in which the core sent them; it fails a step
that is sent while the scores of the one before it wait for their masks.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebay.engine.grammars import Grammars
from enginebay.engine.speculation import NgramProposer
from enginebay.errors import EngineDead, PolicyFailed
from enginebay.messages import (
    Envelope,
    FinishReason,
    GrammarOutput,
    RankReply,
    Replies,
    SchedulerOutput,
    StructuredOutput,
)
from enginebay.transport import encode
from enginebay.worker.failure import describe_failure
from support.clock import FakeClock, fake_runtime
from support.fake_engine import DEFAULT, EOS, FEATURES, FakeEngine, masks_of
from support.fake_grammars import FakeCompiler, a_store
from support.whole_scheduler import OverMechanics

DEPTHS = [1, 2, 3]
YES_OR_NO = StructuredOutput(choice=("yes", "no"))


def sent(engine: FakeEngine) -> list[tuple[int, dict[str, int], tuple[str, ...]]]:
    """(step, tokens of each request, who is told as finished) of each schedule."""
    return [(one.step, one.num_scheduled_tokens, one.finished) for one in engine.executor.steps]


# What is sent, and when


def test_the_exact_sequence_of_batches_at_depth_2() -> None:  # E3, S13
    engine = FakeEngine(depth=2)
    engine.add("a", "hi", max_tokens=3)
    engine.add("b", "say:ok")
    log: list[tuple[str, object]] = []
    engine.executor.before = lambda output: log.append(("sent", output.step))
    while engine.core.has_work():
        outputs = engine.step()
        log.append(("told", {output.request_id: bytes(t for t in output.token_ids if t < EOS) for output in outputs}))
    assert log == [
        ("sent", 0),
        ("sent", 1),
        ("told", {"a": b"t", "b": b"o"}),
        ("sent", 2),
        ("told", {"a": b"h", "b": b"k"}),
        ("sent", 3),  # b may go on; a has all its tokens in flight
        ("told", {"a": b"e", "b": b""}),
        ("sent", 4),  # nothing to compute: who ended
        ("told", {}),
        ("told", {}),
    ]
    assert sent(engine) == [
        (0, {"a": 2, "b": 6}, ()),
        (1, {"a": 1, "b": 1}, ()),
        (2, {"a": 1, "b": 1}, ()),
        (3, {"b": 1}, ()),
        (4, {}, ("a", "b")),
    ]
    assert [report.step for report in engine.hooks.steps] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_a_stop_by_length_wastes_no_step(depth: int, max_tokens: int) -> None:  # S13
    engine = FakeEngine(depth=depth)
    engine.add("a", "hello", max_tokens=max_tokens)
    engine.run()
    assert [sum(one.num_scheduled_tokens.values()) for one in engine.executor.steps if one.num_scheduled_tokens] == [
        5,
        *[1] * (max_tokens - 1),
    ]


@pytest.mark.parametrize("depth", [2, 3])
def test_the_model_length_wastes_no_step_either(depth: int) -> None:  # S13
    engine = FakeEngine(depth=depth, max_model_len=12)
    engine.add("a", "0123456789", max_tokens=2)
    engine.run()
    assert sum(sum(one.num_scheduled_tokens.values()) for one in engine.executor.steps) == 11
    assert engine.texts["a"] == DEFAULT[:2]


# Masks


def test_masks_that_are_known_are_sent_right_behind_the_step() -> None:
    engine = FakeEngine(depth=1, constrained=True)
    assert engine.answer("say:ok")[0] == "ok"
    steps = [one.step for one in engine.executor.steps if one.num_scheduled_tokens]
    assert engine.executor.calls[: 2 * len(steps)] == [(call, step) for step in steps for call in ("execute", "sample")]


@pytest.mark.parametrize("depth", [2, 3])
def test_masks_that_wait_for_a_token_come_after_its_commit_and_nothing_is_sent_between(depth: int) -> None:
    engine = FakeEngine(depth=depth, constrained=True)
    engine.add("a", "say:abc", max_tokens=3)
    log: list[tuple[str, int]] = []
    calls = engine.executor.calls
    while engine.core.has_work():
        engine.step()
        log += calls
        calls.clear()
        log.append(("step", len(engine.hooks.steps) - 1))
    assert log == [
        ("execute", 0),
        ("sample", 0),
        ("execute", 1),  # computed while 0 is drawn; what it may draw is known after 0 is committed
        ("step", 0),
        ("sample", 1),
        ("execute", 2),
        ("step", 1),
        ("sample", 2),
        ("step", 2),
        ("execute", 3),
        ("step", 3),
    ]


def test_masks_do_not_wait_for_requests_that_are_not_theirs() -> None:
    """The free request's tokens are in flight when the constrained one joins: its own are all known."""
    engine = FakeEngine(depth=2, features=FEATURES, constrained=True)
    engine.add("free", max_tokens=9, structured=None)
    engine.step()
    engine.executor.calls.clear()
    engine.add("a", "say:yes", structured=YES_OR_NO)
    engine.step()
    step = next(one.step for one in engine.executor.steps if one.constrained)
    assert step == 2
    assert engine.executor.steps[step].num_scheduled_tokens == {"free": 1, "a": 7}
    assert engine.executor.calls == [("execute", 2), ("sample", 2)]
    engine.run()
    assert engine.texts == {"free": DEFAULT[:9], "a": "yes"}


@pytest.mark.parametrize("depth", DEPTHS)
def test_only_what_draws_is_constrained(depth: int) -> None:
    engine = FakeEngine(depth=depth, max_num_batched_tokens=4, constrained=True)
    engine.add("a", "a prompt in chunks, say:yes", structured=YES_OR_NO)
    engine.run()
    assert engine.texts["a"] == "yes"
    told = [one.constrained for one in engine.executor.steps]
    assert told[:6] == [()] * 6
    assert told[6] == ("a",)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("when", range(8))
def test_an_abort_while_masks_are_owed(depth: int, when: int) -> None:  # S13, S14, E6
    engine = FakeEngine(depth=depth, constrained=True)
    engine.add("a", "say:abcdefgh", max_tokens=8)
    engine.add("b", "say:klmnop", max_tokens=6)
    for _ in range(when):
        engine.step()
    engine.core.abort(["a"])
    engine.run()
    last = engine.last["a"]
    assert last.finish_reason is (FinishReason.ABORT if when < 8 else FinishReason.LENGTH)
    assert engine.texts == {"a": "abcdefgh"[:when], "b": "klmnop"}
    assert engine.kv.num_free_blocks == 64


@pytest.mark.parametrize("depth", [2, 3])
def test_an_abort_between_the_answer_and_the_commit(depth: int) -> None:
    engine = FakeEngine(depth=depth, constrained=True)
    engine.add("a", "say:abcdefgh", max_tokens=8)
    engine.add("b", "say:klmnop", max_tokens=6)
    engine.step()
    outputs, _ = engine.core.step(lambda: engine.core.abort(["a"]))
    assert [(one.request_id, bytes(one.token_ids)) for one in outputs] == [("a", b""), ("b", b"l")]
    engine.tokens["b"] += [*b"l"]
    engine.texts["b"] += "l"
    engine.run()
    assert engine.texts["b"] == "klmnop"
    assert engine.kv.num_free_blocks == 64
    for masks in engine.executor.masks[2:]:
        assert masks_of(masks, "a") == []


def test_a_runner_that_does_not_wait_for_the_masks_is_named() -> None:
    engine = FakeEngine(constrained=True)
    engine.add("a", "say:yes", structured=YES_OR_NO)
    finish = engine.executor._finish
    engine.executor._step = lambda call: finish(engine.executor.table.begin_step(call.scheduler_output), None)  # type: ignore[method-assign, union-attr]  # a runner that knows no masks
    engine.step()
    engine.step()  # an answer out of its turn costs a step, and the third in a row ends it
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert engine.core.stats().committed_tokens == 0
    assert re.fullmatch(
        r"the engine stopped: in step \d, runner 'fake' 1\.0 drew its tokens before it had their masks(;.*)?",
        str(caught.value),
    )


def test_a_runner_that_draws_nothing_is_named() -> None:
    engine = FakeEngine()
    engine.add("a")
    engine.executor._step = lambda call: None  # type: ignore[method-assign]  # a worker that is not ours
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == "the engine stopped: in step 0, runner 'fake' 1.0 did not draw its tokens"


class OwnMasks(OverMechanics):
    """A whole scheduler that has masks of its own: request "a" draws nothing but "!"."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        return replace(output, constrained=("a",) if "a" in output.num_scheduled_tokens else ())

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        mask = (1 << ord("!")).to_bytes(36, "little")
        return GrammarOutput(request_ids=scheduler_output.constrained, bitmask=mask, words_per_row=9)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_scheduler_can_have_masks_of_its_own(depth: int) -> None:
    engine = FakeEngine(depth=depth, scheduler=OwnMasks)
    engine.add("a", max_tokens=4)
    engine.add("b", max_tokens=5)
    engine.run()
    assert engine.texts == {"a": "!!!!", "b": DEFAULT[:5]}


def test_a_scheduler_that_constrains_what_does_not_draw_is_named() -> None:
    engine = FakeEngine(max_num_batched_tokens=4, scheduler=OwnMasks)
    engine.add("a", "a prompt in chunks")
    with pytest.raises(PolicyFailed) as caught:
        engine.step()
    assert str(caught.value) == "scheduler 'fake' 1.0 constrains request 'a', which draws nothing in this step"


# The same tokens, however many steps are in flight, and whatever is proposed


def ngram() -> NgramProposer:
    return NgramProposer(shortest=2, longest=4, max_tokens=4)


def mixed(engine: FakeEngine, seed: int, count: int) -> None:
    """Requests of every kind that the fake runner knows, admitted while others run; some are aborted."""
    random = Random(seed)
    for index in range(count):
        kind = random.randrange(8)
        said = "".join(random.choice("abc") for _ in range(random.randrange(1, 14)))
        ask: dict[str, Any] = {"max_tokens": random.randrange(1, 16)}
        if kind == 1:
            ask["stop"] = (random.choice("abc") * 2,)
        elif kind == 2:
            ask["stop_token_ids"] = (ord("c"),)
        elif kind == 3:
            ask["logprobs"] = random.randrange(3)
        elif kind == 4:
            ask |= {"n": 2, "temperature": 1.0, "seed": index}
        elif kind == 5:
            ask["structured"] = StructuredOutput(choice=(said, said[::-1] + "x"))
        elif kind == 6:
            ask["ignore_eos"] = True
        elif kind == 7:
            ask["prompt_logprobs"] = 1
        engine.add(f"r{index}", f"{random.randrange(9)} say:{said}", **ask)
        for _ in range(random.randrange(3)):
            engine.step()
    engine.run()


def told(engine: FakeEngine) -> Any:
    ends = {name: (one.finish_reason, one.stop_reason) for name, one in engine.last.items()}
    return engine.tokens, engine.texts, ends, engine.logprobs, engine.prompt_logprobs


def mixed_engine(depth: int, *, speculates: bool, num_blocks: int = 64) -> FakeEngine:
    return FakeEngine(
        depth=depth,
        propose=ngram() if speculates else None,
        num_blocks=num_blocks,
        features=FEATURES,
        grammars=Grammars(a_store(FakeCompiler())),
    )


@pytest.mark.parametrize(("num_blocks", "count", "deep"), [(64, 200, 2), (14, 60, 3)], ids=["roomy", "crowded"])
def test_mixed_requests_get_the_same_tokens_with_overlap_and_with_speculation(
    num_blocks: int, count: int, deep: int
) -> None:  # S13
    expected = None
    for depth in (1, deep):
        for speculates in (False, True):
            engine = mixed_engine(depth, speculates=speculates, num_blocks=num_blocks)
            mixed(engine, 5, count)
            if expected is None:
                expected = told(engine)
            assert told(engine) == expected, (depth, speculates)
            assert engine.kv.num_free_blocks == num_blocks
            stats = engine.core.stats()
            assert (stats.proposed_tokens > stats.accepted_tokens > count) is speculates


class Rough:
    """Calls that fail, by their number: computed, and their answers lost."""

    def __init__(self, engine: FakeEngine, fails: set[int]) -> None:
        self.fails, self.count = fails, -1
        self.submit = engine.executor.submit
        engine.executor.submit = self  # type: ignore[method-assign, assignment]  # a line that is as bad as it is asked

    def __call__(self, envelope: Envelope) -> Future[Replies]:
        self.count += 1
        future = self.submit(envelope)
        if self.count in self.fails:
            failure = encode(describe_failure(ValueError("boom"), phase="any", rank=0))
            future = Future()
            reply = RankReply(rank=0, payload=failure)
            future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=(reply,)))
        return future


@settings(max_examples=40)
@given(
    fails=st.sets(st.integers(0, 60), max_size=8),
    depth=st.integers(1, 3),
    speculates=st.booleans(),
    aborted=st.integers(0, 25),
)
def test_no_void_and_no_abort_loses_or_repeats_a_token(
    fails: set[int], depth: int, speculates: bool, aborted: int
) -> None:  # S13, S14
    """Either of the two calls of a step may fail, with others in flight behind it."""
    engine = FakeEngine(
        depth=depth,
        propose=ngram() if speculates else None,
        max_num_batched_tokens=12,
        constrained=True,
        max_failed_steps=100,
    )
    Rough(engine, fails)
    said = {"a": "abcabcabc", "b": "xyxyxyxyxyxy", "c": "qqqqqqqq", "gone": "abcdefghijkl" * 2}
    for name, text in said.items():
        engine.add(name, f"say:{text}", **({"structured": None} if name == "c" else {}))
    for _ in range(aborted):
        if engine.core.has_work():
            engine.step()
    engine.core.abort(["gone"])
    engine.run()
    for name in ("a", "b", "c"):
        assert engine.texts[name] == said[name]
    assert said["gone"].startswith(engine.texts["gone"])
    assert engine.kv.num_free_blocks == 64
    assert not engine.core._pipeline.in_flight


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deadline_passes_while_masks_are_owed(depth: int) -> None:
    clock = FakeClock()
    engine = FakeEngine(depth=depth, constrained=True, runtime=fake_runtime(clock))
    engine.add("a", "say:abcdefgh", {"timeout": 5.0}, max_tokens=8)
    engine.add("b", "say:klmnop", max_tokens=6)
    engine.step()
    clock.time += 6.0
    engine.run()
    assert engine.last["a"].error == "deadline"
    assert engine.texts == {"a": "a", "b": "klmnop"}
    assert engine.kv.num_free_blocks == 64


# Blocks


@pytest.mark.parametrize("depth", [2, 3])
def test_blocks_come_back_when_the_last_step_that_may_write_them_is_done(depth: int) -> None:  # S14
    engine = FakeEngine(depth=depth, num_blocks=8, block_size=4)
    engine.add("a", "0123456789012345", max_tokens=8)
    engine.step()
    in_flight = len(engine.core._pipeline.in_flight)
    assert in_flight == depth - 1
    held = engine.kv.num_free_blocks
    engine.core.abort(["a"])
    assert engine.kv.num_free_blocks == held < 8
    for _ in range(in_flight):
        assert engine.kv.num_free_blocks == held
        engine.step()
    assert engine.kv.num_free_blocks == 8

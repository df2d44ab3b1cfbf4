"""Which answers the core takes: only those to the call and the step that it waits for, and of the right kind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from enginebay.errors import EngineDead
from enginebay.messages import (
    Ack,
    Envelope,
    FinishReason,
    ModelRunnerOutput,
    PluginsLoaded,
    RankReply,
    Replies,
    StepResult,
)
from enginebay.transport import encode
from enginebay.transport.codec import decode_result
from enginebay.worker.failure import describe_failure
from support.fake_engine import DEFAULT, FakeEngine
from support.faults import throws

Submit = Callable[[Envelope], Future[Replies]]


def through(engine: FakeEngine, change: Callable[[Replies], Any]) -> None:
    """Let the executor change each of its answers."""
    submit: Submit = engine.executor.submit

    def changed(envelope: Envelope) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(change(submit(envelope).result()))
        return future

    engine.executor.submit = changed  # type: ignore[method-assign]  # an executor that errs


def with_step(replies: Replies, step: int) -> Replies:
    result = decode_result(replies.replies[0].payload)
    assert isinstance(result, StepResult)
    payload = encode(msgspec.structs.replace(result, step=step))
    return msgspec.structs.replace(replies, replies=(RankReply(rank=0, payload=payload),))


class Stale:
    """Answers a call of the list ``when`` with the answer to the call before it; ``relabelled``: under its own id."""

    def __init__(self, when: set[int], *, relabelled: bool) -> None:
        self._when, self._relabelled = when, relabelled
        self._last: Replies | None = None
        self._count = -1

    def __call__(self, replies: Replies) -> Replies:
        self._count += 1
        last, self._last = self._last, replies
        if self._count not in self._when or last is None:
            return replies
        fresh = {"generation": replies.generation, "call_id": replies.call_id} if self._relabelled else {}
        return msgspec.structs.replace(last, **fresh)


@pytest.mark.parametrize(
    ("constrained", "relabelled"),
    [(False, False), (True, False), (False, True)],
    ids=["one call a step", "two calls a step", "under the id of the call that is waited for"],
)
@pytest.mark.parametrize("when", [{1}, {2, 3}, {1, 4, 6}])
def test_an_answer_to_an_earlier_call_is_dropped_and_counted(
    when: set[int], constrained: bool, relabelled: bool
) -> None:
    engine = FakeEngine(constrained=constrained)
    through(engine, Stale(when, relabelled=relabelled))
    engine.add("a", max_tokens=8)
    engine.add("b", "say:hello")
    engine.run(100)
    assert engine.texts == {"a": DEFAULT[:8], "b": "hello"}
    assert engine.core.stats().dropped_replies >= 1
    assert engine.kv.num_free_blocks == 64


def test_a_worker_that_does_not_say_its_step_is_believed() -> None:
    engine = FakeEngine()
    through(engine, lambda replies: with_step(replies, -1))
    assert engine.answer(max_tokens=5)[0] == DEFAULT[:5]
    assert engine.core.stats().dropped_replies == 0


def test_an_answer_to_another_step_is_dropped() -> None:
    engine = FakeEngine()
    steps = iter([0, 7])
    through(engine, lambda replies: with_step(replies, next(steps, -1)))
    assert engine.answer(max_tokens=5)[0] == DEFAULT[:5]
    assert engine.core.stats().dropped_replies == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "the answer to execute_model of step 0 is NoneType, and must be Replies"),
        (b"x", "the answer to execute_model of step 0 is bytes, and must be Replies"),
        (
            Replies(generation=0, call_id=1, replies=[None]),  # type: ignore[arg-type]  # what an executor may do
            "the answer to execute_model of step 0 must hold a tuple of RankReply",
        ),
    ],
)
def test_an_executor_whose_future_holds_something_else_is_named(answer: Any, message: str) -> None:
    engine = FakeEngine()
    through(engine, lambda replies: answer)
    engine.add("a")
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: executor 'fake' 1.0: {message}"


def test_an_answer_that_cannot_be_read_is_told_with_both_names() -> None:
    engine = FakeEngine()
    through(engine, lambda replies: msgspec.structs.replace(replies, replies=(RankReply(rank=0, payload=b"x"),)))
    engine.add("a")
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value).startswith(
        "the engine stopped: what runner 'fake' 1.0 answered to step 0, through executor 'fake' 1.0, cannot be read: "
    )


def fails(error: BaseException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


@pytest.mark.parametrize(
    ("submit", "message"),
    [
        (
            lambda envelope: None,
            "submit of execute_model of step 0 returned NoneType, and must return a Future of Replies",
        ),
        (
            lambda envelope: throws(ValueError("mine")),
            "it did not take execute_model of step 0: ValueError: mine",
        ),
        (
            lambda envelope: throws(SystemExit(3)),
            "it did not take execute_model of step 0: SystemExit: 3",
        ),
        (
            lambda envelope: fails(ValueError("mine")),
            "it failed execute_model of step 0: ValueError: mine",
        ),
    ],
)
def test_an_executor_that_fails_a_call_is_named(submit: Any, message: str) -> None:
    engine = FakeEngine()
    engine.executor.submit = submit  # type: ignore[method-assign]  # an executor that errs
    engine.add("a")
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: executor 'fake' 1.0: {message}"
    assert [summary.finish_reason for summary in engine.hooks.summaries] == [FinishReason.ERROR]


def answer_of(request_ids: tuple[str, ...], tokens: tuple[tuple[int, ...], ...], **more: Any) -> ModelRunnerOutput:
    return ModelRunnerOutput(request_ids=request_ids, sampled_token_ids=tokens, **more)


@pytest.mark.parametrize(
    ("prompt", "output", "message"),
    [
        ("hi", answer_of(("a",), ((1, 2),)), "drew 2 tokens for request 'a' in step 0; it declares at most 1"),
        (
            "x" * 65,
            answer_of(("a",), ((1,),)),
            "drew 1 tokens for request 'a' in step 0; its tokens are not all computed yet",
        ),
        ("hi", answer_of(("a",), ((1,),), faults={"x": "?"}), "answered step 0 for request 'x', which is not in it"),
    ],
)
def test_a_runner_that_answers_more_than_it_was_asked(prompt: str, output: ModelRunnerOutput, message: str) -> None:
    engine = FakeEngine()  # 64 tokens a step
    engine.executor._step = lambda call: output  # type: ignore[method-assign]  # a runner that errs
    engine.add("a", prompt)
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: runner 'fake' 1.0 {message}"


def test_a_runner_may_draw_as_many_tokens_as_it_declares() -> None:
    engine = FakeEngine(max_tokens_per_step=3, draw=lambda one: tuple(b"abc"))
    engine.add("a", max_tokens=3)
    engine.run(5)
    assert engine.tokens["a"] == [*b"abc"]


def ranks(*answers: tuple[int, Any]) -> Callable[[Replies], Replies]:
    """Every step is answered by these ranks: with what is given, or ("all") with the tokens."""

    def change(replies: Replies) -> Replies:
        payload = replies.replies[0].payload
        held = tuple(
            RankReply(rank=rank, payload=payload if answer == "all" else encode(answer)) for rank, answer in answers
        )
        return msgspec.structs.replace(replies, replies=held)

    return change


def test_a_step_is_done_when_all_ranks_have_said_so() -> None:
    engine = FakeEngine(num_ranks=3, output_rank=1)
    through(engine, ranks((0, Ack()), (1, "all"), (2, "all")))
    assert engine.answer(max_tokens=5)[0] == DEFAULT[:5]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(1, "all")], "executor 'fake' 1.0: the answer to step 0 lacks rank 0"),
        ([(0, Ack())], "executor 'fake' 1.0: the answer to step 0 lacks rank 1"),
        ([], "executor 'fake' 1.0: the answer to step 0 lacks rank 0"),
        ([(1, "all"), (1, "all")], "executor 'fake' 1.0: the answer to step 0 lacks rank 0"),
        ([(0, Ack()), (1, "all"), (0, Ack())], "executor 'fake' 1.0: the answer to step 0 has rank 0 twice"),
        (
            [(0, Ack()), (1, "all"), (2, Ack())],
            "executor 'fake' 1.0: the answer to step 0 has rank 2, and there are ranks 0 to 1",
        ),
        ([(0, Ack()), (1, Ack())], "rank 1 answered step 0 with Ack"),
        ([(0, PluginsLoaded()), (1, "all")], "rank 0 answered step 0 with PluginsLoaded"),
    ],
)
def test_a_rank_that_did_not_acknowledge_the_step_is_named(answers: list[tuple[int, Any]], message: str) -> None:
    """A token of a step that a rank has not computed would stand on keys and values that are not there."""
    engine = FakeEngine(num_ranks=2, output_rank=1)
    through(engine, ranks(*answers))
    engine.add("a", "a prompt of some blocks")
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: {message}"
    assert engine.tokens == {}


@pytest.mark.parametrize("rank", [0, 1])
def test_what_any_rank_reports_as_failed_fails_the_step(rank: int) -> None:
    engine = FakeEngine(num_ranks=2, output_rank=1, max_failed_steps=1)
    failure = describe_failure(ValueError("boom"), phase="execute_model", rank=rank)
    through(engine, ranks(*((one, failure if one == rank else "all") for one in (0, 1))))
    engine.add("a")
    with pytest.raises(EngineDead, match=rf"rank {rank} .* failed in execute_model: ValueError: boom"):
        engine.step()


STEP = StepResult(output=ModelRunnerOutput(), step=0)


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ((RankReply(rank=1, payload=encode(STEP)),), "executor 'fake' 1.0: the answer to step 0 lacks rank 0"),
        ((), "executor 'fake' 1.0: the answer to step 0 lacks rank 0"),
        ((RankReply(rank=0, payload=encode(STEP)),) * 2, "executor 'fake' 1.0: the answer to step 0 has rank 0 twice"),
        (
            (RankReply(rank=0, payload=encode(STEP)), RankReply(rank=1, payload=encode(Ack()))),
            "executor 'fake' 1.0: the answer to step 0 has rank 1, and there are ranks 0 to 0",
        ),
        ((RankReply(rank=0, payload=encode(Ack())),), "rank 0 answered step 0 with Ack"),
    ],
)
def test_one_rank_alone_must_answer_as_one_of_many(replies: tuple[RankReply, ...], message: str) -> None:
    engine = FakeEngine()
    through(engine, lambda answered: msgspec.structs.replace(answered, replies=replies))
    engine.add("a")
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: {message}"

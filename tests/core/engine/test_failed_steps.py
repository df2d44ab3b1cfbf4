"""Steps that a living worker failed: they are computed again, in order, and nothing comes twice.

Every disturbed run has the tokens of the undisturbed one, gapless (``FakeEngine.step`` checks the offsets), and leaves
no block and no row behind.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import EngineDead, OutOfMemory, WorkerFailed, WorkerLost
from enginebay.messages import Envelope, ModelRunnerOutput, Replies
from support.fake_engine import DEFAULT, FakeEngine
from support.mortal import DEPTHS, NUM_STEPS, PROMPTS, Mortal, deadly, failed


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("step", range(NUM_STEPS))
def test_one_failed_step_is_computed_again_on_the_same_worker(depth: int, step: int) -> None:  # E3
    engine = Mortal(depth)
    engine.fail({step})
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 1
    happened = any(output.step == step for output in engine.seen)
    assert engine.generation.current == int(happened)
    usages = [last.usage for last in engine.last.values() if last.usage is not None]
    if step < 12:  # the last ones tell the runner who has ended, and compute nothing
        assert sum(usage.recomputed_tokens for usage in usages) > 0


@given(steps=st.sets(st.integers(0, 60), max_size=20), depth=st.sampled_from(DEPTHS))
def test_any_failed_steps(steps: set[int], depth: int) -> None:
    engine = Mortal(depth, max_failed_steps=100)
    engine.fail(steps)
    engine.run()
    engine.check_ends()


@pytest.mark.parametrize("constrained", [False, True], ids=["one call a step", "two calls a step"])
@pytest.mark.parametrize("error", [ValueError("boom"), OutOfMemory("all is taken"), MemoryError("all is taken")])
def test_three_failures_in_a_row_are_the_death_with_one_root_cause(error: Exception, constrained: bool) -> None:  # E2
    engine = Mortal(constrained=constrained)
    while len(engine.tokens) < 2:
        engine.step()
    engine.fail(set(range(1000)), error)
    assert engine.core.step() == ([], True)  # something ran: nobody waits before the next one
    assert engine.core.step() == ([], True)
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(error) in str(caught.value)
    assert str(caught.value).startswith("the engine stopped: ")
    assert caught.value.exit_code == 70
    errors = {summary.request_id: summary.error for summary in engine.hooks.summaries}
    unfinished = PROMPTS.keys() - engine.last.keys()
    assert {request_id for request_id in errors if errors[request_id]} == unfinished
    assert {errors[request_id] for request_id in unfinished} == {str(caught.value)}
    assert (engine.executor.stopped, engine.incarnations) == (1, 1)


def test_progress_in_between_begins_the_count_again() -> None:
    engine = Mortal(requests={"a": "say:abcdefgh"}, max_num_batched_tokens=64, max_failed_steps=2)
    engine.fail(set(range(1, 100, 2)))  # each token is followed by a failure
    engine.run()
    assert engine.texts == {"a": "abcdefgh"}
    assert engine.generation.current >= 8


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_failure_in_the_second_call_of_a_step(depth: int) -> None:
    engine = Mortal(depth, max_failed_steps=100, constrained=True)
    submit, count = engine.executor.submit, 0

    def failing(envelope: Envelope) -> Future[Replies]:
        nonlocal count
        future = submit(envelope)
        count += 1
        return failed(envelope, ValueError("boom")) if count in (2, 8, 13) else future

    engine.executor.submit = failing  # type: ignore[method-assign]  # a runner that errs in sample_tokens
    engine.run()
    engine.check_ends()
    assert engine.generation.current == 3


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_fault_of_one_request_is_no_failed_step(depth: int, constrained: bool, before: int) -> None:
    """Nor are the steps that were sent with it before that was known."""
    engine = FakeEngine(max_failed_steps=1, depth=depth, constrained=constrained)
    engine.add("a", max_tokens=9)
    engine.add("b", max_tokens=9)
    finish_step = engine.executor.table.finish_step

    def failing(sampled: Mapping[str, Sequence[int]], *rest: Any, **more: Any) -> ModelRunnerOutput:
        if engine.executor.step == before:
            return finish_step(sampled, {"a": "logits are NaN"}, logprobs={}, prompt_logprobs={})
        return finish_step(sampled, *rest, **more)

    engine.executor.table.finish_step = failing  # type: ignore[method-assign]  # one token that is none
    engine.run()
    assert engine.generation.current == 0
    assert engine.last["a"].error == "logits are NaN"
    assert (engine.texts["a"], engine.texts["b"]) == (DEFAULT[:before], DEFAULT[:9])
    assert engine.kv.num_free_blocks == 64
    assert len(engine.executor.table) == 0


def test_an_executor_that_raises_a_workers_failure_is_taken_at_its_word() -> None:
    engine = Mortal()
    submit, calls = engine.executor.submit, 0

    def failing(envelope: Envelope) -> Future[Replies]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise WorkerFailed("rank 0 failed in execute_model: no more")
        return submit(envelope)

    engine.executor.submit = failing  # type: ignore[method-assign]  # an executor that refuses a call
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 1


def test_a_void_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = Mortal(2)
    engine.fail({7})
    with caplog.at_level(logging.INFO, logger="enginebay"):
        engine.run()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("generation 1 begins, void: step 7, 8; rank 0 (pid ")
    assert record.getMessage().endswith("failed in execute_model: ValueError: boom")


@pytest.mark.parametrize("depth", DEPTHS)
def test_steps_are_sent_ahead_and_committed_in_order(depth: int) -> None:  # E3
    engine = Mortal(depth, requests={"a": "say:abcdefghij", "b": "say:klmnopqrst"}, max_num_batched_tokens=64)
    waited: list[tuple[int, int]] = []
    wait = engine.core._execution.wait

    def waiting(flight: Any) -> Any:
        waited.append((flight.step, engine.seen[-1].step))
        return wait(flight)

    engine.core._execution.wait = waiting  # type: ignore[method-assign]  # to look at the queue
    engine.run()
    assert [step for step, _ in waited] == [report.step for report in engine.hooks.steps] == list(range(len(waited)))
    ahead = [newest - step for step, newest in waited]
    assert max(ahead) == depth - 1
    assert ahead[: 9 - depth] == [depth - 1] * (9 - depth)
    assert engine.texts == {"a": "abcdefghi", "b": "klmnopqrs"}


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("error", [ValueError("boom"), WorkerLost("gone")], ids=["fails", "dies"])
def test_of_a_step_that_is_void_the_ones_behind_it_are_void_too(error: Exception, depth: int) -> None:  # E3
    """Their answers are good, and count for nothing: N + 1 is never committed without N."""
    engine = Mortal(depth, requests={"a": "say:abcdefghij", "b": "say:klmnopqrst"}, max_num_batched_tokens=64)
    submit = engine.executor.submit

    def computed_and_lost(engine: Mortal, envelope: Envelope) -> Future[Replies]:
        submit(envelope)
        return failed(envelope, error)

    deadly(engine, computed_and_lost, {4})
    while engine.generation.current == 0:
        engine.step()
    assert [output.step for output in engine.seen] == list(range(4 + depth))
    assert [report.step for report in engine.hooks.steps] == [0, 1, 2, 3]
    assert engine.tokens == {"a": [*b"abcd"], "b": [*b"klmn"]}
    assert not engine.core._pipeline.in_flight
    engine.run()
    after = [report.step for report in engine.hooks.steps][4:]
    assert after == list(range(4 + depth, 4 + depth + len(after)))
    first = next(output for output in engine.seen if output.generation == 1)
    assert [(new.request_id, bytes(new.token_ids)) for new in first.new] == [
        ("a", b"say:abcdefghijabcd"),
        ("b", b"say:klmnopqrstklmn"),
    ]
    assert engine.texts == {"a": "abcdefghi", "b": "klmnopqrs"}

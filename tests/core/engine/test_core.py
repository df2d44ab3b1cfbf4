"""The step loop over a synchronous executor: life cycle, faults, deadlines, late replies, death. E1, E8, S7."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from enginebay.errors import DuplicateRequest, EngineDead, InvalidRequest, PolicyFailed, RequestTooLong, WorkerHung
from enginebay.interfaces import ExecutorHealth, PolicyState, RequestView
from enginebay.messages import FinishReason, SchedulerOutput, Usage
from support.clock import FakeClock, fake_runtime
from support.fake_engine import DEFAULT, EOS, Arrival, FakeEngine


def test_a_request_from_its_prompt_to_its_last_token() -> None:  # E1
    engine = FakeEngine()
    text, last = engine.answer("say:hello")
    assert (text, last.finish_reason, engine.tokens["r0"]) == ("hello", FinishReason.STOP, [*b"hello", EOS])
    assert last.usage == Usage(prompt_tokens=9, completion_tokens=6)
    assert engine.core.stats().scheduler.num_free_blocks == 64
    assert not engine.core.has_work()


def test_ids_live_as_long_as_their_requests() -> None:  # E1
    engine = FakeEngine()
    engine.add("a", max_tokens=3)
    with pytest.raises(DuplicateRequest) as caught:
        engine.add("a")
    assert str(caught.value) == ("request id 'a' is in use by an unfinished request: choose another, or abort that one")
    engine.run()
    del engine.tokens["a"], engine.last["a"]
    engine.add("a", max_tokens=2)
    engine.run()
    assert engine.tokens["a"] == [*b"th"]
    with pytest.raises(InvalidRequest, match="request_id must be a string, not int"):
        engine.add(7)  # type: ignore[arg-type]  # what a client may do all the same
    assert engine.core.stats().finished == 2


def test_an_abort_ends_the_request_and_frees_its_blocks_within_one_step() -> None:  # E6
    engine = FakeEngine()
    engine.add("a", max_tokens=50)
    engine.add("b", max_tokens=4)
    engine.step()
    engine.core.abort(["a", "never was"])
    engine.step()
    assert engine.last["a"].finish_reason is FinishReason.ABORT
    assert engine.last["a"].usage == Usage(prompt_tokens=2, completion_tokens=1)
    engine.run()
    assert engine.tokens["b"] == [*b"the "]
    assert engine.kv.num_free_blocks == 64


def test_no_token_goes_out_of_a_request_that_was_aborted_while_the_step_ran() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=9)
    engine.step()
    outputs, _ = engine.core.step(lambda: engine.core.abort(["a"]))
    assert [(o.finish_reason, o.token_ids) for o in outputs] == [(FinishReason.ABORT, ())]
    engine.run()
    assert engine.kv.num_free_blocks == 64


def test_text_that_was_held_back_goes_out_with_an_abort() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=50, stop=("thx",))
    engine.step()
    engine.step()
    assert engine.texts["a"] == ""
    engine.core.abort(["a"])
    engine.step()
    assert engine.texts["a"] == "th"


def test_the_fault_of_one_request_ends_it_alone() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=4)
    engine.add("b", max_tokens=4)
    engine.step()
    engine.executor.faults["a"] = "logits are NaN"
    engine.run()
    assert (engine.last["a"].finish_reason, engine.last["a"].error) == (FinishReason.ERROR, "logits are NaN")
    assert engine.tokens["a"] == [*b"t"]
    assert engine.tokens["b"] == [*b"the "]
    assert engine.kv.num_free_blocks == 64


def test_a_token_that_the_model_does_not_have_fails_its_request() -> None:
    engine = FakeEngine(draw=lambda one: (999,))
    _, last = engine.answer()
    assert last.error == "runner 'fake' 1.0 drew token 999, outside the vocabulary (0 to 257)"


def test_sampling_in_a_second_call() -> None:
    engine = FakeEngine(constrained=True)
    assert engine.answer(max_tokens=5)[0] == DEFAULT[:5]


def test_chunks_and_preemptions_change_no_token() -> None:  # S9
    undisturbed = FakeEngine()
    crowded = FakeEngine(num_blocks=12, max_num_batched_tokens=6)
    for engine in (undisturbed, crowded):
        for index in range(6):
            engine.add(f"r{index}", "say:" + "abcdefghij"[index:] * 2, max_tokens=20)
        engine.run()
    assert crowded.tokens == undisturbed.tokens
    usages = [last.usage for last in crowded.last.values() if last.usage is not None]
    assert sum(usage.preemptions for usage in usages) == crowded.core.stats().scheduler.preemptions > 0
    assert sum(usage.recomputed_tokens for usage in usages) > 0
    assert [u.completion_tokens for u in usages] == [len(crowded.tokens[r]) for r in crowded.last]
    assert crowded.kv.num_free_blocks == 12


def test_a_prefix_that_was_cached_is_told_in_the_usage() -> None:
    engine = FakeEngine()
    engine.answer("a long enough prompt", max_tokens=1)
    _, last = engine.answer("a long enough prompt", max_tokens=1)
    assert last.usage == Usage(prompt_tokens=20, completion_tokens=1, cached_tokens=16)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:  # S11
    engine = FakeEngine(num_blocks=4)
    with pytest.raises(RequestTooLong, match="that needs 5 KV blocks of 4 tokens, and the cache has 4"):
        engine.add("a", "x" * 10, max_tokens=10)
    with pytest.raises(RequestTooLong, match="the prompt has 128 tokens, and a request may have 128"):
        engine.add("a", "x" * 128)


def test_seeds_are_drawn_at_admission_from_the_seams() -> None:
    seen = []
    for _ in range(2):
        engine = FakeEngine()
        engine.add("given", seed=2**63 + 7, temperature=1.0)
        engine.add("drawn", temperature=1.0)
        engine.step()
        seen.append({new.request_id: new.seed for new in engine.executor.steps[0].new})
    assert seen[0] == seen[1]
    assert seen[0]["given"] == 2**63 + 7
    assert seen[0]["drawn"] not in (0, 2**63 + 7)


def test_a_request_past_its_deadline_ends_with_that_error() -> None:
    clock = FakeClock()
    engine = FakeEngine(runtime=fake_runtime(clock), request_timeout=30.0)
    engine.add("short", max_tokens=50, ask={"timeout": 5.0})
    engine.add("default", max_tokens=50)
    engine.step()
    clock.time += 5
    engine.step()
    assert (engine.last["short"].finish_reason, engine.last["short"].error) == (FinishReason.ERROR, "deadline")
    assert "default" not in engine.last
    clock.time += 25
    engine.step()
    assert engine.last["default"].error == "deadline"
    engine.run()
    assert engine.kv.num_free_blocks == 64


def test_a_reply_of_another_generation_is_dropped_and_counted() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=5)
    engine.step()
    engine.executor.reply_generation = 7
    assert engine.step() == []
    engine.executor.reply_generation = None
    engine.run()
    assert engine.tokens["a"] == [*b"the q"]
    assert engine.core.stats().dropped_replies == 1
    assert engine.kv.num_free_blocks == 64


def test_a_step_that_failed_kills_the_engine_with_one_root_cause() -> None:
    engine = FakeEngine(max_failed_steps=1)

    def crash(output: SchedulerOutput) -> None:
        raise ValueError("boom")

    engine.add("a")
    engine.add("b")
    engine.executor.before = crash
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert "failed in execute_model: ValueError: boom" in str(caught.value)
    assert str(caught.value).startswith("the engine stopped: rank 0")
    assert caught.value.exit_code == 70
    assert engine.executor.stopped == 1
    assert [(s.request_id, s.finish_reason, s.error) for s in engine.hooks.summaries] == [
        ("a", FinishReason.ERROR, str(caught.value)),
        ("b", FinishReason.ERROR, str(caught.value)),
    ]
    with pytest.raises(EngineDead, match="boom"):
        engine.add("c")
    engine.core.stop()
    engine.core.stop()
    assert (engine.executor.stopped, engine.hooks.stopped) == (1, 1)


def test_errors_of_many_requests_share_no_growing_traceback() -> None:  # E8
    engine = FakeEngine(max_failed_steps=1)
    engine.executor.before = lambda output: exec("raise ValueError('boom')")
    engine.add("a")
    errors = []
    for _ in range(50):
        with pytest.raises(EngineDead) as caught:
            engine.step()
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 50
    assert len({str(error) for error in errors}) == 1
    assert {_depth(error) for error in errors[1:]} == {_depth(errors[1])}
    assert all(error.__cause__ is None and error.__context__ is None for error in errors[1:])
    assert errors[0].__cause__ is None
    assert errors[0].__suppress_context__


def _depth(error: BaseException) -> int:
    depth, traceback = 0, error.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    return depth


def test_a_worker_that_does_not_answer_in_time_is_named_as_hung() -> None:
    clock = FakeClock()
    engine = FakeEngine(runtime=fake_runtime(clock), step_timeout=7.0)
    engine.executor.submit = lambda envelope: _never()  # type: ignore[method-assign]  # a worker that hangs
    engine.executor.health = lambda: ExecutorHealth(alive=True, detail="rank 0 in execute_model")  # type: ignore[method-assign]  # what it is doing
    engine.add("a")
    with pytest.raises(WorkerHung) as caught:
        engine.step()
    assert str(caught.value) == (
        "the engine stopped: no answer to execute_model of step 0 within 7 s ([deadlines] step); "
        "rank 0 in execute_model"
    )
    assert caught.value.exit_code == 5


def _never() -> Any:
    from concurrent.futures import Future

    return Future()


class Raises(Arrival):
    def on_output(self, request: RequestView, token_ids: tuple[int, ...]) -> None:
        raise KeyError("mine")


class NeverAdmits(Arrival):
    def admit(self, request: RequestView, state: PolicyState) -> bool:
        return False


def test_an_exception_in_a_policy_is_its_own_error() -> None:
    engine = FakeEngine(policy=Raises)
    engine.add("a")
    with pytest.raises(PolicyFailed, match=r"Raises: on_output\(\) raised KeyError: 'mine'"):
        engine.step()
    with pytest.raises(PolicyFailed):
        engine.step()


def test_a_policy_that_admits_nobody_is_found_out() -> None:
    clock = FakeClock()
    engine = FakeEngine(policy=NeverAdmits, runtime=fake_runtime(clock), step_timeout=60.0)
    engine.add("a")
    assert engine.core.step() == ([], False)
    clock.time += 59
    assert engine.core.step() == ([], False)
    clock.time += 2
    with pytest.raises(PolicyFailed) as caught:
        engine.core.step()
    assert str(caught.value) == "scheduler 'fake' 1.0 has scheduled nothing for 61 s, although 1 requests wait"


class Broken:
    """A whole scheduler of a stranger, as far as the core ever gets with it."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def add_request(self, request: object) -> None:
        """Taken."""

    def has_requests(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda: 1 / 0, "scheduler 'fake' 1.0: schedule() raised ZeroDivisionError: division by zero"),
        (
            lambda: SchedulerOutput(step=0, num_scheduled_tokens={"ghost": 1}),
            "scheduler 'fake' 1.0 scheduled request 'ghost' in step 0, which has ended or never came",
        ),
        (
            lambda: SchedulerOutput(step=0, num_scheduled_tokens={"a": 1}),
            "scheduler 'fake' 1.0 scheduled request 'a' in step 0, and did not say how it runs",
        ),
    ],
)
def test_a_whole_scheduler_that_errs_is_named(schedule: Any, message: str) -> None:
    engine = FakeEngine(scheduler=lambda context: Broken(schedule))  # type: ignore[arg-type,return-value]  # it is broken
    engine.add("a")
    with pytest.raises(PolicyFailed) as caught:
        engine.step()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"request_ids": ("a",), "sampled_token_ids": ()}, "with 1 request ids and 0 rows of tokens"),
        ({"request_ids": ("x",), "sampled_token_ids": ((1,),)}, "for request 'x', which is not in it"),
        ({"request_ids": ("a", "a"), "sampled_token_ids": ((1,), (1,))}, "for one request twice"),
        ({"request_ids": (), "sampled_token_ids": ()}, "without request 'a'"),
    ],
)
def test_a_runner_that_answers_for_what_it_was_not_asked(spoil: dict[str, Sequence[Any]], message: str) -> None:
    from enginebay.messages import ModelRunnerOutput

    engine = FakeEngine()
    engine.executor._step = lambda call: ModelRunnerOutput(**spoil)  # type: ignore[method-assign,arg-type]  # it errs
    engine.add("a")
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: runner 'fake' 1.0 answered step 0 {message}"


def test_an_interrupt_while_waiting_loses_no_token() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=4)
    wait = engine.runtime.clock.wait_future
    to_come: list[BaseException] = []

    def interrupted(future: Any, deadline: float | None) -> Any:
        if to_come:
            raise to_come.pop()
        return wait(future, deadline)

    engine.runtime.clock.wait_future = interrupted  # type: ignore[method-assign]  # Ctrl-C, twice
    for _ in range(2):
        to_come.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.step()
    engine.run()
    assert engine.tokens["a"] == [*b"the "]


def test_stop_ends_what_is_unfinished() -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=50)
    engine.step()
    engine.core.stop()
    assert [(s.request_id, s.finish_reason) for s in engine.hooks.summaries] == [("a", FinishReason.ABORT)]
    with pytest.raises(EngineDead, match="the engine is closed; make a new one"):
        engine.step()


def test_step_reports_and_summaries_have_their_times_in_order() -> None:
    engine = FakeEngine()
    engine.answer(max_tokens=3)
    report = engine.hooks.steps[0]
    assert report.start_ns <= report.scheduled_ns <= report.executed_ns <= report.end_ns
    assert (report.num_requests, report.num_scheduled_tokens, report.num_committed_tokens) == (1, 2, 1)
    assert [one.num_committed_tokens for one in engine.hooks.steps] == [1, 1, 1, 0]  # the last tells who ended
    (summary,) = engine.hooks.summaries
    assert summary.scheduled is not None
    assert summary.first_token is not None
    assert summary.arrival <= summary.scheduled <= summary.first_token <= summary.finished
    assert (summary.first_step, summary.last_step) == (0, 2)


def _objects() -> int:
    """All of Python's small objects that are alive; ``tracemalloc`` is four times slower."""
    gc.collect()
    return sys.getallocatedblocks()


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    """10,000 requests of 8 tokens: nothing is kept of those that ended, and all blocks come back."""
    engine = FakeEngine(num_blocks=512, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, step_every=10**9)
    engine.executor.keep_steps = engine.hooks.keep = False
    finished, added, sizes = 0, 0, {}
    while finished < 10_000:
        while added < min(10_000, finished + 64):
            engine.add(str(added), f"prompt {added}", max_tokens=8)
            added += 1
        outputs, _ = engine.core.step()
        finished += sum(output.finish_reason is not None for output in outputs)
        if finished >= 2_000 and 2_000 not in sizes:
            sizes[2_000] = _objects()
    while engine.core.has_work():
        engine.core.step()
    sizes[10_000] = _objects()
    assert engine.core.stats().finished == 10_000
    assert engine.core.stats().committed_tokens == 80_000
    assert engine.kv.num_free_blocks == 512
    assert len(engine.executor.table) == 0
    assert sizes[10_000] - sizes[2_000] < 1000, sizes  # one object kept per request would be 8,000

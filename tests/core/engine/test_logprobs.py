"""Log-probabilities belong to the commit: gapless, each once, whatever is computed again; and the runner's faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.sinks import PendingDelta
from enginebay.interfaces import NoOptions, Scheduler, SchedulerContext
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    RequestOutput,
    SchedulerOutput,
    SchedulerStats,
    TokenLogprob,
)
from support.fake_engine import FakeEngine, engine_of
from support.fake_logprobs import entry

LONG = "a long prompt in chunks, say:abcdefghijkl"


def check(engine: FakeEngine, name: str, prompt: str, *, logprobs: int = 2, prompt_logprobs: int = 3) -> None:
    """What came is what the fake runner says of these tokens, each once and in order."""
    start = len(prompt)
    expected = [entry(token, start + i, logprobs) for i, token in enumerate(engine.tokens[name])]
    assert engine.logprobs[name] == expected
    of_prompt = [entry(token, i, prompt_logprobs) for i, token in enumerate(prompt.encode()) if i]
    assert engine.prompt_logprobs[name] == of_prompt


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_they_come_with_their_tokens_however_the_prompt_is_cut(budget: int, depth: int) -> None:
    engine = engine_of(max_num_batched_tokens=budget, depth=depth)
    engine.add("a", LONG, max_tokens=9, logprobs=2, prompt_logprobs=3)
    engine.add("b", LONG, max_tokens=9)
    engine.run()
    check(engine, "a", LONG)
    assert (engine.logprobs["b"], engine.prompt_logprobs["b"]) == ([], [])


def test_chunks_of_the_prompt_come_as_they_are_computed() -> None:
    engine = engine_of(max_num_batched_tokens=8)
    engine.add("a", "x" * 20, max_tokens=1, prompt_logprobs=0)
    told = []
    while engine.core.has_work():
        told += [(output.offset, len(output.token_ids), len(output.prompt_logprobs)) for output in engine.step()]
    assert told == [(0, 0, 8), (0, 0, 8), (0, 1, 3)]


@pytest.mark.parametrize("prompt", ["x", "xy"])
def test_short_prompts(prompt: str) -> None:
    engine = engine_of()
    engine.add("a", prompt, max_tokens=3, logprobs=0, prompt_logprobs=20)
    engine.run()
    check(engine, "a", prompt, logprobs=0, prompt_logprobs=20)


@given(void=st.sets(st.integers(0, 30), max_size=10), depth=st.integers(1, 3), budget=st.sampled_from([3, 8]))
def test_no_void_loses_or_repeats_one(void: set[int], depth: int, budget: int) -> None:
    engine = engine_of(max_num_batched_tokens=budget, depth=depth)

    def before(output: SchedulerOutput) -> None:
        engine.executor.reply_generation = 77 if output.step in void else None

    engine.executor.before = before
    engine.add("a", LONG, max_tokens=9, logprobs=2, prompt_logprobs=3)
    engine.add("b", "say:pqr%", max_tokens=9, logprobs=2, prompt_logprobs=3, n=2, temperature=1.0)
    engine.run()
    check(engine, "a", LONG)
    check(engine, "b", "say:pqr%")
    assert len(engine.logprobs["b/1"]) == len(engine.tokens["b/1"])
    assert engine.prompt_logprobs["b/1"] == []


@pytest.mark.parametrize("depth", [1, 2])
def test_no_preemption_loses_or_repeats_one(depth: int) -> None:
    engine = engine_of(num_blocks=14, max_num_batched_tokens=8, depth=depth)
    for name in "abc":
        engine.add(name, f"{name} prompt", max_tokens=20, logprobs=2, prompt_logprobs=3)
    engine.run()
    assert sum(summary.usage.preemptions for summary in engine.hooks.summaries) > 0
    for name in "abc":
        check(engine, name, f"{name} prompt")


def test_such_a_request_starts_at_its_first_token_and_others_on_what_it_wrote() -> None:
    engine = engine_of(max_num_seqs=1)
    for name, params in (("cold", {}), ("told", {"prompt_logprobs": 1}), ("warm", {"logprobs": 1})):
        engine.add(name, LONG, max_tokens=2, **params)
    engine.run()
    starts = {new.request_id: new.num_computed_tokens for step in engine.executor.steps for new in step.new}
    assert starts == {"cold": 0, "told": 0, "warm": 40}
    assert engine.prompt_logprobs["told"] == [entry(token, i, 1) for i, token in enumerate(LONG.encode()) if i]
    engine = engine_of(max_num_seqs=1)
    for name, params in (("told", {"prompt_logprobs": 1}), ("warm", {})):
        engine.add(name, LONG, max_tokens=2, **params)
    engine.run()
    starts = {new.request_id: new.num_computed_tokens for step in engine.executor.steps for new in step.new}
    assert starts == {"told": 0, "warm": 40}


def test_they_are_trimmed_with_the_tokens() -> None:
    engine = engine_of(max_tokens_per_step=4, draw=lambda one: tuple(b"abXc"))
    engine.add("a", "p", max_tokens=9, logprobs=1, stop=("X",))
    engine.run()
    assert engine.tokens["a"] == [*b"abX"]
    assert engine.logprobs["a"] == [entry(token, 1 + i, 1) for i, token in enumerate(b"abX")]


Change = Callable[[ModelRunnerOutput], dict[str, Any]]


def runner_that(engine: FakeEngine, change: Change) -> None:
    """Let the runner change the fields of each output."""
    inner = engine.executor._step

    def step(call: Any) -> Any:
        output = inner(call)
        return msgspec.structs.replace(output, **change(output)) if "a" in output.request_ids else output

    engine.executor._step = step  # type: ignore[method-assign]  # a runner that errs


def told(output: ModelRunnerOutput, **fields: Any) -> dict[str, Any]:
    return {"logprobs": {"a": tuple(msgspec.structs.replace(one, **fields) for one in output.logprobs["a"])}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: {"logprobs": {}}, "sent 0 log-probabilities for 1 drawn tokens"),
        (lambda o: {"logprobs": {"a": o.logprobs["a"] * 2}}, "sent 2 log-probabilities for 1 drawn tokens"),
        (lambda o: told(o, token_id=9), "sent the log-probability of token 9 in place of token 116"),
        (lambda o: told(o, logprob=float("nan")), "sent nan as the log-probability of token 116"),
        (lambda o: told(o, logprob=0.5), "sent 0.5 as the log-probability of token 116"),
        (lambda o: told(o, top=()), "sent 0 of the likeliest tokens beside token 116, and 2 were asked for"),
        (
            lambda o: told(o, top=((1, -1.0), (258, -2.0))),
            "sent the log-probability of token 258, which the model does not have",
        ),
        (
            lambda o: {"prompt_logprobs": {}},
            "was to send the prompt's log-probabilities of positions 1 to 5, and sent none",
        ),
        (
            lambda o: {"prompt_logprobs": {"a": PromptLogprobs(start=2, entries=o.prompt_logprobs["a"].entries[1:])}},
            "was to send the prompt's log-probabilities of positions 1 to 5, and sent 4 from 2 on",
        ),
        (
            lambda o: {"prompt_logprobs": {"a": PromptLogprobs(start=0, entries=o.prompt_logprobs["a"].entries)}},
            "was to send the prompt's log-probabilities of positions 1 to 5, and sent 5 from 0 on",
        ),
        (
            lambda o: {"prompt_logprobs": {"a": PromptLogprobs(start=1, entries=o.prompt_logprobs["a"].entries[::-1])}},
            "sent the log-probability of token 116 in place of token 114",
        ),
    ],
)
def test_a_runner_that_tells_something_else_fails_that_request_alone(change: Change, message: str) -> None:
    engine = engine_of()
    runner_that(engine, change)
    engine.add("a", "prompt", max_tokens=5, logprobs=2, prompt_logprobs=1)
    engine.add("b", max_tokens=3)
    engine.run()
    assert (engine.last["a"].finish_reason, engine.last["a"].error) == (
        FinishReason.ERROR,
        f"runner 'fake' 1.0 {message}",
    )
    assert (engine.tokens["a"], engine.prompt_logprobs["a"]) == ([], [])
    assert engine.texts["b"] == "the"
    assert engine.kv.num_free_blocks == 64


def test_a_token_that_cannot_come_may_be_told() -> None:
    engine = engine_of()
    runner_that(engine, lambda o: told(o, top=((1, -1.0), (2, float("-inf")))))
    engine.add("a", max_tokens=1, logprobs=2)
    engine.run()
    assert engine.logprobs["a"][0].top[1] == (2, float("-inf"))


def test_what_nobody_asked_for_is_dropped() -> None:
    engine = engine_of()
    extra = TokenLogprob(token_id=1, logprob=-1.0, rank=1)
    chunk = PromptLogprobs(start=1, entries=(extra,))
    runner_that(engine, lambda o: {"logprobs": {"a": (extra,)}, "prompt_logprobs": {"a": chunk}})
    engine.add("a", max_tokens=2)
    engine.run()
    assert (engine.logprobs["a"], engine.prompt_logprobs["a"], engine.texts["a"]) == ([], [], "th")


class Hitting(Scheduler[NoOptions]):
    """A whole scheduler that starts its one request on tokens that nobody computed in this run."""

    request: EngineRequest | None = None
    computed = 4

    def add_request(self, request: EngineRequest) -> None:
        self.request = request

    def finish_requests(self, request_ids: Any, status: FinishReason) -> None:
        self.request = None

    def schedule(self) -> SchedulerOutput:
        if self.request is None:
            return SchedulerOutput(step=0)
        new = NewRequest(
            request_id=self.request.request_id,
            token_ids=self.request.prompt_token_ids,
            num_prompt_tokens=6,
            params=self.request.params,
            seed=self.request.seed,
            block_ids=((0, 1),),
            num_computed_tokens=self.computed,
        )
        return SchedulerOutput(step=0, new=(new,), num_scheduled_tokens={"a": 6 - self.computed})

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        self.request = None if committed.finished else self.request

    def preempt_all(self) -> None:
        """Nothing."""

    def has_requests(self) -> bool:
        return self.request is not None

    def make_stats(self) -> SchedulerStats:
        return SchedulerStats()


@pytest.mark.parametrize("computed", [4, 5])
def test_a_scheduler_that_starts_such_a_request_on_cached_tokens_fails_it_alone(computed: int) -> None:
    def make(context: SchedulerContext[NoOptions]) -> Scheduler[NoOptions]:
        scheduler = Hitting(context)
        scheduler.computed = computed
        return scheduler

    engine = engine_of(scheduler=make)
    engine.add("a", "prompt", prompt_logprobs=1)
    engine.run(5)
    assert engine.last["a"].error == (
        f"the scheduler started it on {computed} cached tokens, and it asks for the prompt's log-probabilities: ask "
        "without them, or set [cache] prefix_caching = false"
    )
    assert engine.core.death() is None


ENTRIES = [TokenLogprob(token_id=i, logprob=-1.0 * i, rank=1) for i in range(12)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
def test_merged_deltas_have_all_of_them(sizes: list[tuple[int, int]]) -> None:
    pending, at, known = PendingDelta(), 0, 0
    for count, prompts in sizes:
        pending.add(
            RequestOutput(
                request_id="a",
                choice=2,
                offset=at,
                token_ids=tuple(range(at, at + count)),
                logprobs=tuple(ENTRIES[at : at + count]),
                prompt_logprobs=tuple(ENTRIES[known : known + prompts]),
            )
        )
        at, known = at + count, known + prompts
    whole = pending.whole()
    assert whole == pending.take()
    assert (whole.choice, whole.logprobs, whole.prompt_logprobs) == (2, tuple(ENTRIES[:at]), tuple(ENTRIES[:known]))
    assert not pending
    pending.add(RequestOutput(request_id="a", offset=at))
    assert pending.take().logprobs == ()

"""The runners' suite fails a runner that declares a feature and does not serve it, each by the check for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from enginebay.interfaces import NoOptions, RunnerCapabilities, RunnerContext
from enginebay.messages import (
    ModelInfo,
    ModelRunnerOutput,
    PromptLogprobs,
    RankPlace,
    SamplingParams,
    SchedulerOutput,
    TokenLogprob,
    WorldPlan,
)
from enginebay.testing import RunnerSuite, StartedRunner
from enginebay.testing._runner_features import FeatureChecks
from enginebay.worker import HostDevice
from support.lucid_runner import FEATURES, Lucid

BLOCK_SIZE = 16
MODEL = ModelInfo(
    path="",
    name="",
    architecture="",
    model_type="",
    vocab_size=300,
    max_model_len=4096,
    dtype="float32",
    eos_token_ids=(2,),
)
CONTEXT = RunnerContext(
    options=NoOptions(),
    model=MODEL,
    device=HostDevice(),
    place=RankPlace(),
    world=WorldPlan(),
    dtype="float32",
    cache_dtype="float32",
    block_size=BLOCK_SIZE,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    seed=0,
)
CHECKS = sorted(name for name, _ in inspect.getmembers(FeatureChecks, inspect.isfunction) if name.startswith("test_"))
ASKED = (
    "top_k",
    "top_p",
    "min_p",
    "logit_bias",
    "bad_words_token_ids",
    "min_tokens",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
    "prompt_logprobs",
)
Output = ModelRunnerOutput


def run(check: str, runner: Any, features: frozenset[str] = FEATURES) -> None:
    started = StartedRunner(runner, RunnerCapabilities(features=features), MODEL)
    getattr(RunnerSuite(), check)(started, BLOCK_SIZE)


@pytest.mark.parametrize("check", CHECKS)
def test_the_whole_one_passes(check: str) -> None:
    run(check, Lucid(CONTEXT))


class Altered(Lucid):
    """Serves everything, of altered requests, and alters what it tells."""

    def __init__(
        self,
        params: dict[str, Any] | None = None,
        choice: int | None = None,
        after: Callable[[Output], Output] = lambda output: output,
    ) -> None:
        super().__init__(CONTEXT)
        self.params, self.choice, self.after = params or {}, choice, after

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        new = tuple(
            msgspec.structs.replace(
                one,
                params=msgspec.structs.replace(one.params, **self.params),
                choice=one.choice if self.choice is None else self.choice,
            )
            for one in scheduler_output.new
        )
        return self.after(super().execute_model(msgspec.structs.replace(scheduler_output, new=new)))


def ignoring(**params: Any) -> Altered:
    """Takes these parameters and puts others in their place."""
    return Altered(params)


def altering(what: Callable[[TokenLogprob], TokenLogprob]) -> Altered:
    """Alters each log-probability of a drawn token."""
    return Altered(
        after=lambda output: msgspec.structs.replace(
            output, logprobs={key: tuple(map(what, entries)) for key, entries in output.logprobs.items()}
        )
    )


def altering_prompts(what: Callable[[PromptLogprobs], PromptLogprobs]) -> Altered:
    return Altered(
        after=lambda output: msgspec.structs.replace(
            output, prompt_logprobs={key: what(chunk) for key, chunk in output.prompt_logprobs.items()}
        )
    )


def logprobs_after_the_bias(entry: TokenLogprob) -> TokenLogprob:
    """What the log-probability of a forced token looks like when it is taken after the bias."""
    return msgspec.structs.replace(entry, logprob=0.0, rank=1, top=((entry.token_id, 0.0), *entry.top[1:]))


class CountsThePromptToo(Lucid):
    """Penalises the prompt's tokens for presence and frequency."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        new = tuple(msgspec.structs.replace(one, num_prompt_tokens=0) for one in scheduler_output.new)
        return super().execute_model(msgspec.structs.replace(scheduler_output, new=new))


BROKEN: dict[str, tuple[str, Callable[[], Lucid]]] = {
    "top_k ignored": ("test_filters_that_leave_one_token", lambda: ignoring(top_k=0)),
    "top_p ignored": ("test_filters_that_leave_one_token", lambda: ignoring(top_p=1.0)),
    "min_p ignored": ("test_filters_that_leave_one_token", lambda: ignoring(min_p=0.0)),
    "logit_bias ignored": ("test_logit_bias", lambda: ignoring(logit_bias={})),
    "bad words ignored": ("test_bad_words", lambda: ignoring(bad_words_token_ids=())),
    "min_tokens ignored": ("test_min_tokens", lambda: ignoring(min_tokens=0)),
    "min_tokens without end": ("test_min_tokens", lambda: ignoring(min_tokens=99)),
    "min_tokens masks no stop tokens": ("test_min_tokens", lambda: ignoring(stop_token_ids=())),
    "min_tokens masks an eos that is ignored": ("test_min_tokens", lambda: ignoring(ignore_eos=False)),
    "min_tokens masks no eos": ("test_min_tokens", lambda: ignoring(ignore_eos=True)),
    "repetition penalty ignored": ("test_repetition_penalty", lambda: ignoring(repetition_penalty=1.0)),
    "frequency penalty ignored": ("test_penalties_of_the_answer", lambda: ignoring(frequency_penalty=0.0)),
    "presence penalty ignored": ("test_penalties_of_the_answer", lambda: ignoring(presence_penalty=0.0)),
    "penalties count the prompt": ("test_penalties_of_the_answer", lambda: CountsThePromptToo(CONTEXT)),
    "choices are all the first": ("test_choices_differ_and_repeat", lambda: Altered(choice=0)),
    "logprobs ignored": ("test_logprobs", lambda: ignoring(logprobs=None)),
    "logprobs without neighbours": ("test_logprobs", lambda: ignoring(logprobs=0)),
    "logprobs for everybody": ("test_logprobs", lambda: ignoring(logprobs=5)),
    "logprobs of another token": (
        "test_logprobs",
        lambda: altering(lambda entry: msgspec.structs.replace(entry, token_id=entry.token_id + 1)),
    ),
    "ranks counted from 0": (
        "test_logprobs",
        lambda: altering(lambda entry: msgspec.structs.replace(entry, rank=entry.rank - 1)),
    ),
    "logprobs after the bias": (
        "test_logprobs_are_of_the_raw_distribution",
        lambda: altering(logprobs_after_the_bias),
    ),
    "prompt logprobs ignored": ("test_prompt_logprobs", lambda: ignoring(prompt_logprobs=None)),
    "prompt logprobs from the first token on": (
        "test_prompt_logprobs",
        lambda: altering_prompts(lambda chunk: msgspec.structs.replace(chunk, start=chunk.start - 1)),
    ),
    "prompt logprobs with a gap": (
        "test_prompt_logprobs",
        lambda: altering_prompts(lambda chunk: msgspec.structs.replace(chunk, entries=chunk.entries[:-1])),
    ),
    "prompt logprobs of every choice": ("test_prompt_logprobs", lambda: Altered(choice=0)),
    "prompt logprobs of the place before": (
        "test_logprobs_of_a_prompt_are_those_of_the_same_answer",
        lambda: altering_prompts(
            lambda chunk: msgspec.structs.replace(
                chunk,
                entries=tuple(
                    msgspec.structs.replace(theirs, token_id=ours.token_id)
                    for ours, theirs in zip(chunk.entries, chunk.entries[:1] + chunk.entries, strict=False)
                ),
            )
        ),
    ),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_one_is_caught(what: str) -> None:
    check, make = BROKEN[what]
    with pytest.raises(AssertionError):
        run(check, make())


def test_each_check_catches_a_broken_one() -> None:
    assert {check for check, _ in BROKEN.values()} == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_not_declared_is_not_asked(check: str) -> None:
    """Of a runner that serves nothing beyond greedy and temperature."""
    plain = SamplingParams()
    run(check, ignoring(**{name: getattr(plain, name) for name in ASKED}), frozenset())

"""Proposals and masks on a real model: the tokens are those of one step at a time, greedy and seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from enginebay.interfaces import ModelRunner
from enginebay.messages import (
    GrammarOutput,
    ModelRunnerOutput,
    NewRequest,
    RunningRequest,
    SamplingParams,
    SchedulerOutput,
)
from enginebay.testing._runner_start import start_runner

PROMPTS = {"a": [5, 9, 44, 5, 9], "b": [17, 3, 17, 3, 8, 120, 17], "c": [61]}
WISHES: dict[str, dict[str, Any]] = {
    "a": {"logprobs": 2},
    "b": {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3},
    "c": {"temperature": 0.7, "frequency_penalty": 0.8, "min_tokens": 4, "logprobs": 1},
}
BLOCKS = {"a": ((0, 1, 2, 3),), "b": ((4, 5, 6, 7),), "c": ((8, 9, 10, 11),)}
COUNT = 14
WORDS = (199 + 31) // 32


def new(name: str, groups: int) -> NewRequest:
    prompt = tuple(PROMPTS[name])
    return NewRequest(
        request_id=name,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        params=SamplingParams(max_tokens=COUNT, **WISHES[name]),
        seed=31,
        block_ids=BLOCKS[name] * groups,
        num_computed_tokens=0,
    )


class Requests:
    """Drives a runner step by step; ``allowed`` says what a constrained request may draw after so many tokens."""

    def __init__(self, runner: ModelRunner[Any], groups: int) -> None:
        self.runner = runner
        self.tokens = {name: list(prompt) for name, prompt in PROMPTS.items()}
        self.logprobs: dict[str, list[Any]] = {name: [] for name in PROMPTS}
        self.allowed: Callable[[str, Sequence[int]], int] | None = None
        self.groups = groups
        self.steps = 0

    def step(self, drafts: dict[str, Sequence[int]]) -> None:
        """All requests go on by a token, and by as many of these proposals as hold."""
        first = not self.steps
        running = [
            RunningRequest(
                request_id=name, num_computed_tokens=len(known) - 1, draft_token_ids=tuple(drafts.get(name, ()))
            )
            for name, known in self.tokens.items()
        ]
        counts = {name: len(known) if first else 1 + len(drafts.get(name, ())) for name, known in self.tokens.items()}
        schedule = SchedulerOutput(
            step=self.steps,
            new=tuple(new(name, self.groups) for name in PROMPTS) if first else (),
            running=() if first else tuple(running),
            num_scheduled_tokens=counts,
            constrained=() if self.allowed is None else ("a", "c"),
        )
        self.steps += 1
        output = self.runner.execute_model(schedule)
        if self.allowed is not None:
            assert output is None
            output = self.runner.sample_tokens(self.masks(schedule, drafts))
        assert isinstance(output, ModelRunnerOutput)
        assert output.faults == {}
        for name, drawn in zip(output.request_ids, output.sampled_token_ids, strict=True):
            self.tokens[name] += drawn
            self.logprobs[name] += output.logprobs.get(name, ())

    def masks(self, schedule: SchedulerOutput, drafts: dict[str, Sequence[int]]) -> GrammarOutput:
        ids, rows = [], b""
        for name in schedule.constrained:
            for depth in range(1 + len(drafts.get(name, ()))):
                assert self.allowed is not None
                ids.append(name)
                known = [*self.tokens[name], *drafts.get(name, ())[:depth]]
                rows += self.allowed(name, known).to_bytes(4 * WORDS, "little")
        return GrammarOutput(request_ids=tuple(ids), bitmask=rows, words_per_row=WORDS)


def odd_or_even(name: str, known: Sequence[int]) -> int:
    """Tokens of the other parity than the last one."""
    return sum(1 << token for token in range(199) if (token + known[-1]) % 2)


def run(runner: ModelRunner[Any], groups: int, *, masked: bool) -> Requests:
    requests = Requests(runner, groups)
    requests.allowed = odd_or_even if masked else None
    while len(requests.tokens["a"]) < len(PROMPTS["a"]) + COUNT:
        requests.step({})
    return requests


@pytest.mark.parametrize("masked", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_verified_tokens_are_those_drawn_one_by_one(tiny: Callable[[str], Path], family: str, masked: bool) -> None:
    with start_runner("v1", tiny(family)) as started:
        expected = run(started.runner, started.groups, masked=masked)
    for how_many_right in (0, 1, 2, 3):
        with start_runner("v1", tiny(family)) as started:
            requests = Requests(started.runner, started.groups)
            requests.allowed = odd_or_even if masked else None
            requests.step({})
            while any(len(requests.tokens[name]) < len(PROMPTS[name]) + COUNT for name in PROMPTS):
                drafts: dict[str, Sequence[int]] = {}
                for name, known in requests.tokens.items():
                    ahead = expected.tokens[name][len(known) : len(known) + 3]
                    drafts[name] = [t if i < how_many_right else (t + 2) % 199 for i, t in enumerate(ahead)]
                requests.step(drafts)
            for name, known in requests.tokens.items():
                end = len(PROMPTS[name]) + COUNT
                assert known[:end] == expected.tokens[name][:end], (name, how_many_right)
                told = list(zip(requests.logprobs[name], expected.logprobs[name], strict=False))
                assert len(told) == (COUNT if "logprobs" in WISHES[name] else 0)
                for entry, other in told:
                    assert (entry.token_id, entry.rank) == (other.token_id, other.rank)
                    assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert requests.steps <= 1 + -(-(COUNT - 1) // (1 + how_many_right)) + 1


def test_a_step_whose_masks_never_came_is_forgotten_with_the_next_one(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("llama")) as started:
        expected = run(started.runner, started.groups, masked=False)
    with start_runner("v1", tiny("llama")) as started:
        requests = Requests(started.runner, started.groups)
        schedule = SchedulerOutput(
            step=0, new=(new("a", started.groups),), num_scheduled_tokens={"a": 5}, constrained=("a",)
        )
        assert started.runner.execute_model(schedule) is None
        again = SchedulerOutput(
            step=1,
            generation=1,
            new=tuple(new(name, started.groups) for name in PROMPTS),
            num_scheduled_tokens={name: len(prompt) for name, prompt in PROMPTS.items()},
        )
        output = started.runner.execute_model(again)
        assert isinstance(output, ModelRunnerOutput)
        for name, (token,) in zip(output.request_ids, output.sampled_token_ids, strict=True):
            assert token == expected.tokens[name][len(PROMPTS[name])]
        assert requests.steps == 0

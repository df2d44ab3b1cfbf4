"""In fp32 the tokens are those of transformers' ``generate``, however the work is cut, dealt out and batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, StartedRunner, start_runner
from support.tiny_models import FAMILIES, VOCAB, reference

NUM_BLOCKS, NEW_TOKENS = 96, 20
LENGTHS = (1, 5, 15, 16, 17, 33, 60, 100)
PARAMS = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)


def prompts() -> list[list[int]]:
    random = Random(1)
    return [[random.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]


class Case:
    """One family: the running runner, and what ``generate`` answers."""

    def __init__(self, started: StartedRunner, expected: list[list[int]]) -> None:
        self.started = started
        self.expected = expected

    def answers(
        self, *, which: list[int] | None = None, chunk: int | None = None, shuffle: int | None = None
    ) -> list[list[int]]:
        driver = RunnerDriver(self.started.runner, num_blocks=NUM_BLOCKS, block_size=16, shuffle=shuffle)
        for index, prompt in enumerate(prompts()):
            if which is None or index in which:
                driver.add(str(index), prompt, PARAMS)
        answers = list(driver.run(chunk=chunk).values())
        driver.step({})
        return answers


@pytest.fixture(params=sorted(FAMILIES))
def case(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[Case]:
    folder = tiny(request.param)
    with start_runner("v1", folder, num_blocks=NUM_BLOCKS) as started:
        yield Case(started, reference(folder, prompts(), NEW_TOKENS))


def test_tokens_equal_generate(case: Case) -> None:
    assert len({token for answer in case.expected for token in answer}) > 20, "the model says the same all the time"
    assert case.answers() == case.expected
    assert case.answers(chunk=7) == case.expected
    assert case.answers(shuffle=3) == case.expected
    assert case.answers(chunk=7, shuffle=4) == case.expected
    assert [case.answers(which=[index])[0] for index in range(len(LENGTHS))] == case.expected


@pytest.mark.parametrize("case", ["mistral-window", "qwen2-mixed-window"], indirect=True)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_window_that_is_off_by_one_is_noticed(case: Case, change: int) -> None:
    """The comparison above can fail: it sees a window that is one token too short or too long."""
    runner = case.started.runner
    model = runner._model  # type: ignore[attr-defined]  # the test breaks the runner from within
    wrong = {}
    for layer in model.model.layers:
        module = layer.self_attn
        if module.eb.window is not None:
            module.eb.window += change
            module.sliding_window = module.eb.window
            wrong[module.eb.window - change] = module.eb.window
    model.config.sliding_window = next(iter(wrong.values()))
    runner._shapes = tuple(  # type: ignore[attr-defined]  # as above
        type(shape)(shape.heads, shape.kv_heads, shape.head_dim, wrong.get(shape.window, shape.window))
        for shape in runner._shapes  # type: ignore[attr-defined]  # as above
    )
    assert case.answers() != case.expected


@pytest.mark.parametrize("case", ["llama", "mistral-window"], indirect=True)
def test_what_blocks_held_before_is_never_read(case: Case) -> None:
    """NaN in every slot of the cache, as a faulty request may leave it: 0 times NaN would still be NaN."""
    case.started.runner._cache.pages.fill_(torch.nan)  # type: ignore[attr-defined]  # the test spoils it from within
    assert case.answers(shuffle=1) == case.expected
    case.started.runner._cache.pages.fill_(torch.nan)  # type: ignore[attr-defined]  # as above
    assert case.answers(chunk=5) == case.expected

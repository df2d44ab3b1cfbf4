"""Seeded draws of runner v2 are those of v1, with its kernels and without, whatever the batch and the chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, start_runner

NUM_BLOCKS = 64
PARAMS = [
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.7, top_p=0.9),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.9, min_p=0.02, logit_bias={3: 2.0}),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.3, top_k=20, top_p=0.95, repetition_penalty=1.2),
    SamplingParams(max_tokens=12, ignore_eos=True),
]


def answers(folder: Path, runner: str, options: dict[str, str], chunk: int | None) -> dict[str, list[int]]:
    """Of five requests, together in one batch."""
    with start_runner(runner, folder, num_blocks=NUM_BLOCKS, options=options) as started:
        driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
        for at, params in enumerate(PARAMS):
            driver.add(f"r{at}", [7 * at + token for token in range(5, 16 + at)], params, seed=at)
        return driver.run() if chunk is None else driver.run(chunk=chunk)


def test_they_are_those_of_v1(tiny: Callable[[str], Path]) -> None:
    folder = tiny("llama")
    expected = answers(folder, "v1", {}, None)
    assert len({token for answer in expected.values() for token in answer}) >= 20
    for execution in "wait", "off":
        assert answers(folder, "v2", {"compile": execution}, None) == expected
    assert answers(folder, "v2", {"compile": "wait"}, 5) == expected

"""What ``batch_invariant`` costs: steps of both kinds with the mode on and off in turn, in processor time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pytest
import torch

from enginebay.testing import start_runner
from enginebay_runner_v1.invariant_check import Part

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

BLOCKS = 40
CASES = {
    "prompt of 512": (1, 0, 512, 7),
    "1 token after 300": (1, 300, 1, 11),
    "12 tokens after 300": (12, 300, 1, 11),
    "50 tokens after 300": (50, 300, 1, 11),
}
"""Name → requests, tokens in the cache, tokens of the step, repetitions."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def step(runner: Any, requests: int, start: int, count: int) -> float:
    """Milliseconds of processor time."""
    parts = [
        Part(start, [(7 * request + token) % 40_000 for token in range(count)], range(at, at + BLOCKS))
        for request, at in ((request, request * BLOCKS) for request in range(requests))
    ]
    before = process_time()
    runner._run_parts(parts)
    return (process_time() - before) * 1e3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cost_of_the_mode(smollm2: Path, dtype: str) -> None:
    with (
        start_runner("v1", smollm2, dtype=dtype, num_blocks=2048) as plain,
        start_runner("v1", smollm2, dtype=dtype, num_blocks=2048, batch_invariant=True) as invariant,
    ):
        runners = (plain.runner, invariant.runner)
        for runner in runners:
            for layer in runner._cache.pages:  # type: ignore[attr-defined]  # the cache is filled from within
                for pages in layer:
                    pages.normal_()
        for name, (requests, start, count, times) in CASES.items():
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(times):
                for runner, own in zip(runners, taken, strict=True):
                    own.append(step(runner, requests, start, count))
            off, on = median(taken[0][1:]), median(taken[1][1:])
            print(f"| {dtype} | {name} | {off:.0f} ms | {on:.0f} ms | {on / off:.2f} |")
            assert on > 0

"""Sequences decoded in a batch, and computed again from any point: alone, in chunks, or beside others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import torch

from enginebay.messages import SamplingParams
from enginebay.worker.sampling import Draw, draw_tokens
from enginebay_runner_v1.invariant_check import Part

TOGETHER = 6
"""How many are computed again in one step, where they are computed beside others."""


@dataclass
class Agreement:
    """How many resume points were looked at, what differed at them, and by how much at most."""

    points: int = 0
    equal: int = 0
    flips: int = 0
    largest: float = 0.0
    first: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.equal} of {self.points} bit-equal, largest difference {self.largest:.1e}, {self.flips} other tokens"
        )


class Walk:
    """``prompts`` continued by ``steps`` tokens in one batch: every second greedily, the others drawn at T = 1."""

    def __init__(self, runner: Any, prompts: Sequence[Sequence[int]], steps: int, block_size: int = 16) -> None:
        self.runner = runner
        self.prompts = [len(prompt) for prompt in prompts]
        self.texts = [list(prompt) for prompt in prompts]
        self.steps = steps
        longest = max(self.prompts) + steps
        self._blocks = -(-longest // block_size)
        self._draws = [SamplingParams(temperature=float(index % 2), seed=index) for index in range(len(prompts))]
        self._logits: dict[tuple[int, int], torch.Tensor] = {}
        self._walk()

    @property
    def num_blocks(self) -> int:
        """How many blocks the cache must have."""
        return (len(self.texts) + TOGETHER) * self._blocks

    def _part(self, index: int, start: int, stop: int, place: int) -> Part:
        blocks = range(place * self._blocks, (place + 1) * self._blocks)
        return Part(start, self.texts[index][start:stop], blocks)

    def _draw(self, index: int, length: int, logits: torch.Tensor) -> int:
        draw = Draw(self._draws[index], self.texts[index][:length], self.prompts[index], seed=index)
        token = draw_tokens(logits.unsqueeze(0), [draw]).token_ids[0]
        assert token is not None
        return token

    def _walk(self) -> None:
        indexes = range(len(self.texts))
        parts = [self._part(index, 0, self.prompts[index], index) for index in indexes]
        for _ in range(self.steps):
            for index, row in zip(indexes, self.runner._run_parts(parts), strict=True):
                length = len(self.texts[index])
                self._logits[index, length] = row.clone()
                self.texts[index].append(self._draw(index, length, row))
            parts = [self._part(index, len(self.texts[index]) - 1, len(self.texts[index]), index) for index in indexes]

    def points(self, count: int) -> list[tuple[int, int]]:
        """``count`` of all (sequence, length), in a mixed order."""
        return Random(5).sample(sorted(self._logits), count)

    def resume(self, points: Sequence[tuple[int, int]]) -> Agreement:
        """Compute these points from the beginning and compare: a quarter alone, one in chunks, half together."""
        seen = Agreement()
        quarter = len(points) // 4
        place = len(self.texts)
        for index, length in points[:quarter]:
            self._compare(seen, [(index, length)], self.runner._run_parts([self._part(index, 0, length, place)]))
        random = Random(6)
        for index, length in points[quarter : 2 * quarter]:
            cuts = sorted({0, random.randrange(length), random.randrange(length), length})
            for start, stop in pairwise(cuts):
                logits = self.runner._run_parts([self._part(index, start, stop, place)])
            self._compare(seen, [(index, length)], logits)
        rest = points[2 * quarter :]
        for begin in range(0, len(rest), TOGETHER):
            some = rest[begin : begin + TOGETHER]
            parts = [self._part(index, 0, length, place + at) for at, (index, length) in enumerate(some)]
            self._compare(seen, some, self.runner._run_parts(parts))
        return seen

    def _compare(self, seen: Agreement, points: Sequence[tuple[int, int]], logits: torch.Tensor) -> None:
        for (index, length), row in zip(points, logits, strict=True):
            before = self._logits[index, length]
            seen.points += 1
            seen.equal += torch.equal(before.view(torch.uint8), row.contiguous().view(torch.uint8))
            gap = float((before.float() - row.float()).abs().max())
            if gap > 0 and len(seen.first) < 3:
                seen.first.append(f"sequence {index} at {length}: {gap:.1e}")
            seen.largest = max(seen.largest, gap)
            seen.flips += self._draw(index, length, row) != self.texts[index][length]

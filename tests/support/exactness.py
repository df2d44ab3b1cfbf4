"""A runner on a tiny model, beside what transformers' ``generate`` answers to a few prompts."""

from __future__ import annotations

from random import Random

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, StartedRunner
from support.parity import Reference
from support.tiny_models import VOCAB

__all__ = ["FEW", "LONG", "MANY", "NUM_BLOCKS", "SHORT", "Case"]

NUM_BLOCKS = 96
SHORT, LONG = (1, 7, 16, 17, 40), (1, 5, 15, 16, 17, 33, 60, 100)
"""Prompt lengths of the suite and of the soak: around a block's end, and longer than every window."""
FEW, MANY = 8, 20


class Case:
    """One family: the running runner, and what ``generate`` answers to a few prompts."""

    def __init__(self, started: StartedRunner, reference: Reference, lengths: tuple[int, ...], new_tokens: int) -> None:
        random = Random(1)
        self.prompts = [[random.randrange(VOCAB) for _ in range(length)] for length in lengths]
        self.params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        self.started = started
        self.reference = reference
        self.expected = [self.reference.generate(prompt, new_tokens) for prompt in self.prompts]

    def answers(
        self, *, which: int | None = None, chunk: int | None = None, shuffle: int | None = None
    ) -> list[list[int]]:
        driver = RunnerDriver(self.started.runner, num_blocks=NUM_BLOCKS, block_size=16, shuffle=shuffle)
        for index, prompt in enumerate(self.prompts):
            if which in (None, index):
                driver.add(str(index), prompt, self.params)
        answers = list(driver.run(chunk=chunk).values())
        driver.step({})
        return answers

    def check(self, answers: list[list[int]]) -> None:
        """They are those of ``generate``, or differ first where its two best logits are a near tie."""
        if answers != self.expected:
            self.reference.compare(self.prompts, answers).check()

    def differs(self, answers: list[list[int]]) -> bool:
        """The comparison above would fail."""
        return answers != self.expected and bool(self.reference.compare(self.prompts, answers).faults)

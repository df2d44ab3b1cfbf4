"""Prompts cut from shipped texts, and transformers as the reference that tokens are held against."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.repository import ROOT

NEAR_TIE = 1e-4
"""Gap of the reference's two best fp32 logits below which another order of summation may choose the other token."""
TOKENS_PER_NEAR_TIE = 50_000

SHORTEST, LONGEST = 5, 600


def cut_prompts(token_ids: Sequence[int], count: int) -> list[list[int]]:
    """``count`` prompts of 5 to 600 tokens, evenly spaced lengths, each from another place of the text."""
    prompts = []
    for index in range(count):
        length = SHORTEST + round((LONGEST - SHORTEST) * index / (count - 1))
        begin = index * (len(token_ids) - LONGEST) // count
        prompts.append(list(token_ids[begin : begin + length]))
    return prompts


def shipped_text() -> str:
    """English and code-like text that is on every machine: the licence and docstrings of the standard library."""
    names = ("argparse", "decimal", "doctest", "fractions", "functools", "inspect", "pathlib", "statistics", "textwrap")
    parts = [(ROOT / "LICENSE").read_text("utf-8")]
    for name in names:
        module = importlib.import_module(name)
        members = [module, *(member for _, member in sorted(inspect.getmembers(module, inspect.isclass)))]
        parts += [inspect.getdoc(member) or "" for member in members]
    return "\n\n".join(parts)


@dataclass
class Verdict:
    """What a comparison found. ``near_ties`` names each difference that another order of summation explains."""

    tokens: int = 0
    near_ties: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Count another comparison too."""
        self.tokens += other.tokens
        self.near_ties += other.near_ties
        self.faults += other.faults

    def check(self) -> None:
        """No fault, and near ties no more often than once in 50,000 tokens (one may fall into any sample).

        It is meant for the sum of all comparisons of a run: of a small one it allows a near tie too.
        """
        print(f"{self.tokens} tokens compared, {len(self.near_ties)} near ties: {self.near_ties}")
        assert not self.faults, self.faults
        assert len(self.near_ties) <= max(1, self.tokens // TOKENS_PER_NEAR_TIE), self.near_ties


class Reference:
    """transformers in fp32 on one model folder. Each (prompt, answer) is computed once, whoever asks."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        self._torch = torch
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int, float]]] = {}
        self._generated: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def compare(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Verdict:
        """Teacher-forced: at every position the answer's token is the greedy one after all tokens before it.

        That is the same as equality with ``generate``, and goes on past a near tie instead of ending there.
        """
        verdict = Verdict()
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            verdict.tokens += len(answer)
            for position, best, gap in self._differences(tuple(prompt), tuple(answer)):
                what = (
                    f"prompt {number} ({len(prompt)} tokens), output {position}: "
                    f"{answer[position]} instead of {best}, {gap:.1e} behind"
                )
                (verdict.near_ties if gap <= NEAR_TIE else verdict.faults).append(what)
        return verdict

    def _differences(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[tuple[int, int, float]]:
        """(position in the answer, the greedy token, how far the answer's token is behind it) of each difference."""
        if (prompt, answer) not in self._known:
            torch = self._torch
            with torch.inference_mode():
                ids = torch.tensor([[*prompt, *answer[:-1]]])
                logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(answer)).logits[0]
            best = logits.argmax(-1)
            self._known[prompt, answer] = [
                (position, int(best[position]), float(logits[position, best[position]] - logits[position, token]))
                for position, token in enumerate(answer)
                if int(best[position]) != token
            ]
        return self._known[prompt, answer]

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """What ``generate`` itself answers greedily, eos ignored."""
        key = (tuple(prompt), max_new_tokens)
        if key not in self._generated:
            torch = self._torch
            with torch.inference_mode():
                ids = torch.tensor([list(prompt)])
                out = self.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=max_new_tokens,
                    eos_token_id=None,
                    pad_token_id=0,
                )
            self._generated[key] = out[0, len(prompt) :].tolist()
        return self._generated[key]

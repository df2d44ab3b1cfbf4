"""Proposals are verified by drawing: what comes out is what would have been drawn one by one, whatever was proposed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.messages import GrammarOutput, SamplingParams, TokenLogprob
from enginebay.worker import Row, ScheduledRow
from enginebay.worker.masks import grammar_masks
from enginebay.worker.sampling import Draw, draw_tokens
from enginebay.worker.verification import StepDraws, draw_step

VOCAB = 12
EOS = (11,)
MASK_WORDS = 1


def logits_after(known: Sequence[int], nan_at: int | None = None) -> torch.Tensor:
    """The model: logits ``[VOCAB]`` that depend on every token before; a few, so that proposals often hold."""
    if len(known) == nan_at:
        return torch.full((VOCAB,), math.nan)
    generator = torch.Generator().manual_seed(zlib.crc32(bytes(known[-3:])))
    return 4 * torch.randn(VOCAB, generator=generator)


def mask_after(known: Sequence[int]) -> int:
    """The grammar: the tokens of one half or the other, and eos."""
    return (0x2AA if sum(known) % 2 else 0x555) | 1 << EOS[0]


def a_row(name: str, known: Sequence[int], prompt: int, params: SamplingParams, drafts: Sequence[int]) -> ScheduledRow:
    row = Row(
        request_id=name,
        token_ids=list(known),
        num_prompt_tokens=prompt,
        params=params,
        seed=77,
        choice=1,
        block_ids=[[]],
        num_computed_tokens=len(known) - 1,
    )
    return ScheduledRow(row, 1 + len(drafts), True, tuple(drafts))


def one_by_one(
    known: Sequence[int], prompt: int, params: SamplingParams, count: int, *, masked: bool, nan_at: int | None = None
) -> tuple[list[int], list[TokenLogprob], str | None]:
    """``count`` tokens, each drawn by a step of its own; their log-probabilities; the fault that ends them."""
    tokens: list[int] = []
    entries: list[TokenLogprob] = []
    while len(tokens) < count:
        now = [*known, *tokens]
        grammar = GrammarOutput(request_ids=("a",), bitmask=mask_after(now).to_bytes(4, "little"), words_per_row=1)
        drawn = draw_tokens(
            logits_after(now, nan_at).unsqueeze(0),
            [Draw(params, now, prompt, 77, 1, EOS)],
            masks=grammar_masks(grammar, ["a"]) if masked else None,
        )
        token = drawn.token_ids[0]
        if token is None:
            return tokens, entries, drawn.faults[0]
        tokens.append(token)
        entries += drawn.logprobs.values()
    return tokens, entries, None


def step_of(rows: Sequence[ScheduledRow], *, masked: Sequence[str] = (), nan_at: int | None = None) -> StepDraws:
    """One step over all these rows: the model sees their proposals as if they were known."""
    logits, ids, masks = [], [], b""
    for one in rows:
        for depth in range(1 + len(one.draft_token_ids)):
            known = [*one.row.token_ids, *one.draft_token_ids[:depth]]
            logits.append(logits_after(known, nan_at))
            if one.row.request_id in masked:
                ids.append(one.row.request_id)
                masks += mask_after(known).to_bytes(4, "little")
    grammar = GrammarOutput(request_ids=tuple(ids), bitmask=masks, words_per_row=MASK_WORDS) if masked else None
    return draw_step(torch.stack(logits), rows, EOS, grammar)


WISHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0},
    "filtered": {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.9, "presence_penalty": 0.4},
    "random penalties": {"temperature": 0.9, "frequency_penalty": 1.5},
    "bias": {"logit_bias": {3: 2.0, 4: -5.0}},
    "bad words": {"bad_words_token_ids": ((3,), (1, 2))},
    "min_tokens": {"min_tokens": 6, "logit_bias": {EOS[0]: 50.0}, "stop_token_ids": (5,)},
    "logprobs": {"logprobs": 3, "temperature": 0.7},
}


def check(known: list[int], prompt: int, params: SamplingParams, drafts: list[int], *, masked: bool) -> int:
    """One row alone; returns how many of its proposals held."""
    expected, entries, _ = one_by_one(known, prompt, params, 1 + len(drafts), masked=masked)
    held = 0
    while held < len(drafts) and drafts[held] == expected[held]:
        held += 1
    got = step_of([a_row("a", known, prompt, params, drafts)], masked=("a",) if masked else ())
    assert got.token_ids == {"a": expected[: held + 1]}
    assert got.faults == {}
    assert got.logprobs == ({"a": entries[: held + 1]} if params.logprobs is not None else {})
    return held


@pytest.mark.parametrize("masked", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("wish", WISHES)
def test_right_proposals_all_hold_and_wrong_ones_change_nothing(wish: str, masked: bool) -> None:
    params = SamplingParams(max_tokens=99, **WISHES[wish])
    known = [1, 2, 3, 1, 2]
    right, _, _ = one_by_one(known, 3, params, 4, masked=masked)
    assert check(known, 3, params, right, masked=masked) == 4
    for place in range(4):
        wrong = [*right[:place], (right[place] + 1) % VOCAB, *right[place + 1 :]]
        assert check(known, 3, params, wrong, masked=masked) == place


@given(
    known=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
    prompt=st.integers(1, 9),
    drafts=st.lists(st.integers(0, VOCAB - 1), max_size=5),
    true=st.integers(0, 5),
    wish=st.sampled_from(sorted(WISHES)),
    masked=st.booleans(),
)
def test_any_proposals(known: list[int], prompt: int, drafts: list[int], true: int, wish: str, masked: bool) -> None:
    """``true`` of them are made right, so that the ones behind them are reached."""
    params = SamplingParams(max_tokens=99, **WISHES[wish])
    prompt = min(prompt, len(known))
    right, _, _ = one_by_one(known, prompt, params, len(drafts), masked=masked)
    true = min(true, len(drafts))
    check(known, prompt, params, right[:true] + drafts[true:], masked=masked)


def test_rows_with_and_without_proposals_do_not_touch_each_other() -> None:
    greedy, warm = SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, temperature=1.0, logprobs=1)
    wanted: dict[str, tuple[list[int], SamplingParams, list[int]]] = {}
    for index, (params, count) in enumerate([(greedy, 0), (warm, 3), (greedy, 2), (warm, 0), (greedy, 4)]):
        known = [index, index + 1, 3]
        right, _, _ = one_by_one(known, 2, params, count + 1, masked=index == 2)
        wanted[f"r{index}"] = known, params, right
    rows = [a_row(name, known, 2, params, right[:-1]) for name, (known, params, right) in wanted.items()]
    got = step_of(rows, masked=("r2",))
    assert got.token_ids == {name: right for name, (_, _, right) in wanted.items()}
    assert {name: len(entries) for name, entries in got.logprobs.items()} == {"r1": 4, "r3": 1}


def test_a_fault_behind_a_proposal_is_told_by_the_step_that_comes_to_it() -> None:
    params = SamplingParams(max_tokens=9, logprobs=0)
    known = [4, 4, 1]
    right, entries, fault = one_by_one(known, 3, params, 4, masked=False, nan_at=5)
    assert (len(right), fault) == (2, "the model's logits for token 5 are NaN: no token can be drawn")
    got = step_of([a_row("a", known, 3, params, [*right, 7])], nan_at=5)
    assert (got.token_ids, got.faults, got.logprobs) == ({"a": right}, {}, {"a": entries})
    then = step_of([a_row("a", [*known, *right], 3, params, [])], nan_at=5)
    assert (then.token_ids, then.faults) == ({}, {"a": fault})


def test_no_row_draws_nothing() -> None:
    assert draw_step(torch.empty((0, VOCAB)), [], EOS) == StepDraws()

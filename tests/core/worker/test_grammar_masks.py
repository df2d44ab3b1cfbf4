"""Masks of grammars in the sampler: nothing else is drawn, greedy or not, and what else bans tokens goes on to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import GrammarOutput, SamplingParams
from enginebay.worker.masks import Mask, grammar_masks
from enginebay.worker.sampling import Draw, Drawn, draw_tokens

VOCAB, EOS = 70, 69


def mask_of(*tokens: int, words: int = 3) -> Mask:
    bits = np.zeros(32 * words, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little")


def draw(logits: torch.Tensor, mask: Mask | None, *, generated: int = 0, **params: object) -> Drawn:
    """One row's token."""
    asked = SamplingParams(**params)  # type: ignore[arg-type]  # parameters by name
    one = Draw(asked, [1, 2, *range(generated)], 2, seed=5, eos_token_ids=(EOS,))
    return draw_tokens(logits.unsqueeze(0), [one], masks=[mask])


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
    st.floats(0, 2),
    st.integers(0, 5),
    st.floats(0.1, 1),
    st.integers(0, 2**31),
)
def test_what_is_drawn_is_allowed(tokens: set[int], temperature: float, top_k: int, top_p: float, seed: int) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    drawn = draw(logits, mask_of(*tokens), temperature=temperature, top_k=top_k, top_p=top_p)
    assert drawn.token_ids[0] in tokens
    if temperature == 0:
        assert drawn.token_ids[0] == max(tokens, key=lambda token: float(logits[token]))


def test_a_mask_that_allows_all_changes_nothing() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    for temperature in (0.0, 0.7):
        with_mask, without = (draw(logits, mask, temperature=temperature) for mask in (mask_of(*range(VOCAB)), None))
        assert with_mask == without


def test_rows_without_one_stay_as_they_are() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    draws = [Draw(SamplingParams(), [1], 1)] * 3
    free = draw_tokens(logits, draws).token_ids
    assert draw_tokens(logits, draws, masks=None).token_ids == free
    assert draw_tokens(logits, draws, masks=[None, mask_of(7), None]).token_ids == [free[0], 7, free[2]]


def test_nothing_that_is_allowed() -> None:
    drawn = draw(torch.zeros(VOCAB), mask_of())
    assert (drawn.token_ids, list(drawn.faults)) == ([None], [0])


def test_logits_at_fault_are_the_models() -> None:
    logits = torch.zeros(VOCAB)
    logits[3] = torch.nan
    assert draw(logits, mask_of(5)).faults == {0: "the model's logits for token 2 are NaN: no token can be drawn"}


@given(st.lists(st.sets(st.integers(0, VOCAB - 1), min_size=1), min_size=1, max_size=4), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_row_does_not_depend_on_the_others(sets: list[set[int]], seed: int) -> None:
    logits = torch.randn(len(sets), VOCAB, generator=torch.Generator().manual_seed(seed))
    masks = [mask_of(*tokens) for tokens in sets]
    params = [SamplingParams(temperature=float(row % 2), seed=row) for row in range(len(sets))]
    draws = [Draw(one, [1], 1, seed=7) for one in params]
    together = draw_tokens(logits, draws, masks=masks).token_ids
    alone = [
        draw_tokens(logits[row : row + 1], [draws[row]], masks=[masks[row]]).token_ids[0] for row in range(len(sets))
    ]
    assert together == alone


def test_tokens_beyond_the_mask_are_not_allowed() -> None:
    logits = torch.arange(VOCAB, dtype=torch.float32)
    assert draw(logits, mask_of(3, 5, words=1)).token_ids == [5]
    assert draw(logits, mask_of(3, 95)).token_ids == [3]


def test_bias_and_bad_words_act_among_the_allowed() -> None:
    logits = torch.zeros(VOCAB)
    assert draw(logits, mask_of(3, 5), logit_bias={5: 1.0, 9: 99.0}).token_ids == [5]
    assert draw(logits, mask_of(3, 5), bad_words_token_ids=((3,),)).token_ids == [5]


def test_all_that_is_allowed_may_be_banned() -> None:
    drawn = draw(torch.zeros(VOCAB), mask_of(3), bad_words_token_ids=((3,),))
    assert drawn.faults == {
        0: "no token is left for token 2: the grammar, logit_bias, bad_words and min_tokens ban every one"
    }


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    told = draw(logits, mask_of(4), logprobs=1).logprobs[0]
    assert told.logprob == pytest.approx(float(logits.double().log_softmax(-1)[4]))
    assert told.top[0][0] == int(logits.argmax())


@pytest.mark.parametrize(
    ("tokens", "generated", "expected"),
    [
        ((EOS, 3), 0, 3),  # it goes on, and must
        ((EOS, 3), 5, EOS),  # it may end
        ((EOS,), 0, EOS),  # it is complete: it cannot be made longer
        ((EOS, 8), 0, EOS),  # the other one is a stop token, and ends it as well
    ],
)
def test_min_tokens_holds_while_the_grammar_goes_on(tokens: tuple[int, ...], generated: int, expected: int) -> None:
    logits = torch.zeros(VOCAB)
    logits[EOS] = 5.0
    drawn = draw(logits, mask_of(*tokens), generated=generated, min_tokens=5, stop_token_ids=(8,))
    assert drawn.token_ids == [expected]


def test_rows_of_a_request_come_in_order() -> None:
    rows = [mask_of(token) for token in (1, 2, 3)]
    grammar = GrammarOutput(
        request_ids=("a", "b", "a"), bitmask=b"".join(row.tobytes() for row in rows), words_per_row=3
    )
    found = grammar_masks(grammar, ["free", "a", "a", "b"])
    assert found[0] is None
    assert [int(np.unpackbits(row, bitorder="little").argmax()) for row in found[1:] if row is not None] == [1, 3, 2]
    assert grammar_masks(None, ["a"]) == grammar_masks(GrammarOutput(), ["a"]) == [None]

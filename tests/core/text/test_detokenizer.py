"""Pieces put together are the whole, no piece ends in half a character, and the cost per token stays the same."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.text import IncrementalDetokenizer, Tokenizer
from support.tiny_tokenizers import KINDS, sentencepiece_like, writable

MORE = settings(max_examples=300)


def _pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push([i]) for i in ids), detokenizer.finish()]


def _assert_whole(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(_pieces(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@MORE
@given(data=st.data(), skip=st.booleans())
def test_any_ids_of_smollm2(smollm2_tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, smollm2_tokenizer.vocab_size - 1) | st.integers(0, 300)))
    _assert_whole(smollm2_tokenizer, ids, skip)


@MORE
@given(data=st.data(), skip=st.booleans())
def test_any_ids_of_every_kind_of_tokenizer(any_tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, any_tokenizer.vocab_size + 1)))
    _assert_whole(any_tokenizer, ids, skip)


@MORE
@given(text=st.text(), skip=st.booleans())
def test_any_text(smollm2_tokenizer: Tokenizer, any_tokenizer: Tokenizer, text: str, skip: bool) -> None:
    for tokenizer in (smollm2_tokenizer, any_tokenizer):
        _assert_whole(tokenizer, tokenizer.encode(text), skip)


@given(text=st.text(writable()))
def test_never_half_a_character(smollm2_tokenizer: Tokenizer, text: str) -> None:
    so_far = ""
    for piece in _pieces(smollm2_tokenizer, smollm2_tokenizer.encode(text), skip=True):
        assert "\ufffd" not in piece
        so_far += piece
        assert text.startswith(so_far)
    assert so_far == text


def test_an_emoji_over_several_tokens_comes_at_once(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("a🦜b")
    pieces = _pieces(smollm2_tokenizer, ids, skip=True)
    assert len(ids) > 4
    assert [p for p in pieces if p] == ["a", "🦜", "b"]


def test_an_unfinished_character_at_the_end(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("a🦜")[:-1]
    assert [p for p in _pieces(smollm2_tokenizer, ids, skip=True) if p] == ["a", "\ufffd"]


def test_byte_tokens_are_held_until_they_are_whole() -> None:
    tokenizer = sentencepiece_like(legacy=False)
    ids = tokenizer.encode("the €a")
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([i]) for i in ids] == ["the", " ", "", "", "", "€a"]
    assert detokenizer.finish() == ""


@MORE
@given(data=st.data(), length=st.integers(1, 5))
@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece-legacy"])
def test_looking_ahead_tells_the_end_of_what_finish_returns(kind: str, data: st.DataObject, length: int) -> None:
    tokenizer = KINDS[kind]()
    ids = data.draw(
        st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(tokenizer.encode("日語\x20\x01")))
    )
    detokenizer = IncrementalDetokenizer(tokenizer)
    detokenizer.push(ids)
    ahead = detokenizer.ahead(length)
    assert ahead in ("", detokenizer.finish()[-length:])


def test_looking_ahead_in_a_run_of_byte_tokens() -> None:
    tokenizer = sentencepiece_like(legacy=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("the 日本")
    assert [(detokenizer.push([i]), detokenizer.ahead(9)) for i in ids] == [
        *(("the", ""), (" ", "")),
        *(("", ""), ("", ""), ("", "日")),
        *(("", ""), ("", ""), ("", "日本")),
    ]
    assert detokenizer.ahead(1) == "本"
    assert detokenizer.finish() == "日本"


def test_special_tokens(smollm2_tokenizer: Tokenizer) -> None:
    ids = [104, 2, 105]
    assert _pieces(smollm2_tokenizer, ids, skip=True) == ["x", "", "y", ""]
    assert _pieces(smollm2_tokenizer, ids, skip=False) == ["x", "<|im_end|>", "y", ""]


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_the_cost_per_token_does_not_grow(kind: str) -> None:
    tokenizer = KINDS[kind]()
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("the and the é 🦜 " * 100)

    def cheapest() -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            detokenizer.push(ids)
            times.append(time.perf_counter() - start)
        return min(times)

    early = cheapest()
    for _ in range(20):
        detokenizer.push(ids)
    assert cheapest() < 5 * early  # a window that grew with the answer would be 25 times as slow

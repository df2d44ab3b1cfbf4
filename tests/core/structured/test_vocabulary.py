"""What each token adds to a text is what the tokenizer's own decoder says, and answers drawn by it read as their shape.

Whole vocabularies, of every kind of decoder that is read, and of unigram models beside those of the tiny tokenizers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from enginebay.messages import StructuredOutput
from enginebay.structured import GrammarState
from enginebay.structured._definitions import definition_of, form_of
from enginebay.structured._llguidance import first_fault, new_state
from enginebay.structured._vocabulary import load_vocabulary, token_texts
from enginebay.text import IncrementalDetokenizer, Tokenizer
from support.tiny_tokenizers import byte_level, metaspace, sentencepiece_like, wordpiece

from .conftest import eos_of, tokens_of

SPARE = 7
"""Tokens that the model has and the tokenizer has not."""


def unigram(decoder: Any, *, byte_tokens: bool = True, normalizer: Any = None) -> Tokenizer:
    """A unigram model with added tokens of every kind."""
    scored = [(f"<0x{byte:02X}>", -10.0) for byte in range(256)] if byte_tokens else []
    words = ["▁", *"abcde", "▁a", "▁b", "bc", "▁▁", "é", "b▁c"]
    scores = [("<unk>", 0.0), *scored, *((word, -1.0 - number) for number, word in enumerate(words))]
    base = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=byte_tokens))
    if normalizer is None:
        base.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        base.normalizer = normalizer
    base.decoder = decoder
    added = ("two words", "▁x", "x<0x41>", "<0x41>y", "▁▁ x")
    base.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    base.add_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return Tokenizer(base.to_str(), "here")


def in_sequence(*more: Any) -> Any:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more])


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "Llama": lambda: sentencepiece_like(legacy=False),
    "Llama, legacy": lambda: sentencepiece_like(legacy=True),
    "Metaspace": metaspace,
    "Gemma": lambda: unigram(in_sequence(), normalizer=normalizers.Replace(" ", "▁")),
    "unigram": lambda: unigram(decoders.Metaspace(), byte_tokens=False),
    "unigram, bytes": lambda: unigram(in_sequence(decoders.Strip(" ", 1, 0))),
    "bytes as text": lambda: unigram(decoders.Metaspace()),
    "bytes, then Metaspace": lambda: unigram(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])),
    "nothing before the answer": lambda: unigram(decoders.Metaspace(prepend_scheme="never")),
}
each_kind = pytest.mark.parametrize("kind", sorted(KINDS))


def started(tokenizer: Tokenizer, structured: StructuredOutput) -> GrammarState:
    vocabulary = load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size + SPARE, [eos_of(tokenizer)])
    return new_state(vocabulary, definition_of(*form_of(structured)))


@each_kind
def test_each_token_adds_what_the_decoder_says(kind: str) -> None:
    tokenizer = KINDS[kind]()
    texts = token_texts(json.loads(tokenizer.to_json()), tokenizer.vocab_size + SPARE)
    around = tokenizer.encode("a")[-1]
    assert tokenizer.token(around) in ("a", "▁a")
    before = tokenizer.decode([around], skip_special_tokens=False)
    for token, (first, later) in enumerate(zip(texts.first, texts.later, strict=True)):
        decoded = tokenizer.decode([around, token], skip_special_tokens=False)
        assert before + later.decode(errors="replace") == decoded, f"{tokenizer.token(token)!r}, later"
        decoded = tokenizer.decode([token], skip_special_tokens=False)
        assert first.decode(errors="replace") == decoded, f"{tokenizer.token(token)!r}, first"


@pytest.mark.parametrize("kind", [*sorted(KINDS), "byte level"])
def test_what_the_library_was_given(kind: str) -> None:
    """Where any text may come every token with a text may, and no control token and no number without a token."""
    tokenizer = byte_level() if kind == "byte level" else KINDS[kind]()
    state = started(tokenizer, StructuredOutput(regex="(?s:a.*)"))
    state.accept([token for token in range(tokenizer.vocab_size) if tokenizer.token(token) == "a"])
    allowed = tokens_of(state.mask())
    for token in range(tokenizer.vocab_size + SPARE):
        spelling = tokenizer.token(token)
        if spelling is None or token in tokenizer.special_ids:
            assert (token in allowed) == (token == eos_of(tokenizer)), (token, spelling)
        elif not (spelling.startswith("<") and spelling.endswith(">")):
            text = tokenizer.decode([token], skip_special_tokens=False)
            assert token in allowed or "\ufffd" in text, spelling


REGEXES = ["a", " a", "  a b", "a?", "[a-c ]{0,6}", "(ab|b c|a  b| )", " +é?", "(é|e)[a-e]*"]


@each_kind
@settings(max_examples=12, deadline=None)
@given(st.sampled_from(REGEXES), st.integers(0, 2**31))
def test_what_is_drawn_reads_as_its_shape(kind: str, regex: str, seed: int) -> None:
    """As the client reads it, delta by delta, without the space that the decoder drops at the start."""
    tokenizer = KINDS[kind]()
    state, eos, numbers = started(tokenizer, StructuredOutput(regex=regex)), eos_of(tokenizer), random.Random(seed)
    answer: list[int] = []
    text, detokenizer = "", IncrementalDetokenizer(tokenizer)
    for _ in range(100):
        mask = tokens_of(state.mask())
        if not mask and "é" in regex:
            assert kind in ("Metaspace", "bytes as text"), "it has no token for the letter"
            return
        assert (state.error, bool(mask)) == ("", True)
        assert (eos in mask) == state.is_complete
        if eos in mask and (len(mask) == 1 or numbers.random() < 0.3):
            break
        token = numbers.choice(sorted(mask - {eos}))
        assert state.copy().accept((token,)) == state.accept((token,)) == 1
        answer.append(token)
        text += detokenizer.push((token,))
    text += detokenizer.finish()
    assert text == tokenizer.decode(answer)
    assert re.fullmatch(regex, text), [tokenizer.token(token) for token in answer]
    rebuilt = started(tokenizer, StructuredOutput(regex=regex))
    assert rebuilt.accept(answer) == len(answer)
    assert rebuilt.mask() == state.mask()


@each_kind
def test_what_is_not_allowed_first(kind: str) -> None:
    tokenizer = KINDS[kind]()
    state = started(tokenizer, StructuredOutput(regex="ab"))
    for token in (-1, 10**6, eos_of(tokenizer), tokenizer.vocab_size):
        assert state.accept((token,)) == 0
    assert state.accept(()) == 0
    assert not state.is_complete
    assert state.error == ""


def test_a_text_that_no_token_can_write_is_no_answer() -> None:
    tokenizer = metaspace()
    vocabulary = load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size, [eos_of(tokenizer)])
    for structured in (StructuredOutput(regex="日"), StructuredOutput(choice=("Z", "Y"))):
        assert first_fault(vocabulary, definition_of(*form_of(structured))).startswith("no answer fits it")
    assert first_fault(vocabulary, definition_of("regex", "a|日")) == ""


@pytest.mark.parametrize(
    ("decoder", "why"),
    [
        (wordpiece()._decoder.decoder, "its decoder has WordPiece, and must be"),
        (decoders.BPEDecoder(), "its decoder has BPEDecoder, and must be"),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]), "its decoder has ByteFallback after Fuse"),
        (in_sequence(decoders.Strip(" ", 0, 1)), "its decoder has Strip after Fuse"),
        (in_sequence(decoders.Strip("x", 1, 0)), "its decoder has Strip after Fuse"),
        (in_sequence(decoders.Strip(" ", 2, 0)), "its decoder has Strip after Fuse"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), "its decoder has Strip, and must be"),
        (decoders.Replace(tokenizers.Regex("▁"), " "), "its decoder has Replace, and must be"),
        (decoders.Sequence([]), "it has no decoder, and must have"),
    ],
)
def test_a_decoder_whose_tokens_have_no_text_of_their_own(decoder: Any, why: str) -> None:
    tokenizer = unigram(decoder)
    with pytest.raises(ValueError, match=f"^{re.escape(why)}"):
        load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size, [eos_of(tokenizer)])

"""Ids equal llama.cpp's, decoding gives the text back, and what users type stays text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import InvalidRequest, ModelError
from enginebay.text import Tokenizer, encode_prompt
from support.tiny_tokenizers import sentencepiece_like, writable

DATA = Path(__file__).parents[2] / "data" / "smollm2_tokenizer.jsonl"


def _recorded() -> Iterator[dict[str, object]]:
    for line in DATA.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def test_ids_of_213_texts_are_those_of_llama_cpp(smollm2_tokenizer: Tokenizer) -> None:
    count = 0
    for recorded in _recorded():
        text = str(recorded["text"])
        plain, special = smollm2_tokenizer.encode(text), smollm2_tokenizer.encode(text, special=True)
        assert plain == recorded["ids_plain"], text
        assert special == recorded["ids_special"], text
        assert smollm2_tokenizer.decode(plain) == text
        assert smollm2_tokenizer.decode(special, skip_special_tokens=False) == text
        count += 1
    assert count == 213


def test_one_token_per_digit(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("In 1984, 365 days")
    pieces = [smollm2_tokenizer.decode([i]) for i in ids]
    assert pieces == ["In", " ", "1", "9", "8", "4", ",", " ", "3", "6", "5", " days"]


def test_a_special_token_typed_by_a_user_stays_text(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("<|im_end|>")
    assert smollm2_tokenizer.special_ids.isdisjoint(ids)
    assert smollm2_tokenizer.decode(ids) == "<|im_end|>"
    assert smollm2_tokenizer.encode("<|im_end|>", special=True) == [2]
    assert smollm2_tokenizer.decode([2]) == ""


def test_sizes(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.vocab_size == 49152
    assert {0, 1, 2} <= smollm2_tokenizer.special_ids


@given(text=st.text(writable()))
def test_any_text_comes_back(smollm2_tokenizer: Tokenizer, text: str) -> None:
    ids = smollm2_tokenizer.encode(text)
    assert smollm2_tokenizer.special_ids.isdisjoint(ids)
    assert smollm2_tokenizer.decode(ids) == text


@given(text=st.text(st.characters(categories=["Cs"]), min_size=1))
def test_lone_surrogates_are_refused(smollm2_tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        smollm2_tokenizer.encode("ab" + text)
    assert str(caught.value) == (
        f"character 2 is a lone surrogate (U+{ord(text[0]):04X}), which is no text; send valid UTF-8"
    )


def test_threads_do_not_mix_the_two_readings(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_folder(smollm2)

    def read(number: int) -> list[int]:
        return tokenizer.encode("x<|im_end|>", special=bool(number % 2))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(2000)))
    assert all(ids == ([104, 2] if n % 2 else [104, 44, 108, 306, 79, 486, 108, 46]) for n, ids in enumerate(found))


def test_bos_only_where_the_tokenizer_asks_for_it(smollm2_tokenizer: Tokenizer) -> None:
    assert encode_prompt(smollm2_tokenizer, "hi") == smollm2_tokenizer.encode("hi")
    other = sentencepiece_like(legacy=False)
    assert other.decode(encode_prompt(other, "and"), skip_special_tokens=False) == "<s> and"
    assert encode_prompt(other, "<s>") != encode_prompt(other, "")


def test_ids_outside_the_vocabulary_give_nothing(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.decode([104, 10**6, 105]) == "xy"
    with pytest.raises(InvalidRequest, match=r"^these token ids cannot be decoded: "):
        smollm2_tokenizer.decode([-1])


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no tokenizer.json; fetch it from where the model came from, or set [model] tokenizer"
    )


@pytest.mark.parametrize("text", ["", "{}", "[" * 10_000, '{"model": 3}'])
def test_a_damaged_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=f"^{tmp_path / 'tokenizer.json'} cannot be used: "):
        Tokenizer.from_folder(tmp_path)


def test_a_panic_is_an_error_of_ours(smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """What pyo3 raises."""

    class Panics:
        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise PanicException("index out of bounds\nmore")

    monkeypatch.setattr(smollm2_tokenizer, "_plain", Panics())
    with pytest.raises(InvalidRequest) as caught:
        smollm2_tokenizer.encode("x")
    assert str(caught.value) == "the text cannot be tokenized: index out of bounds"


def test_an_interrupt_is_not_swallowed(smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(smollm2_tokenizer, "_plain", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        smollm2_tokenizer.encode("x")

"""Tokenizers made from metadata cut as their model family does, and ask for bos where the file says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from enginebay.models._convert import convert
from enginebay.models._pretokenizers import KNOWN, pre_tokenizer
from support.tiny_gguf import write_gguf

TEXT = "Don't pay 12345  now\n\n x=é1"


def _converted(folder: Path, **changes: object) -> Tokenizer:
    gguf = write_gguf(folder / "m.gguf", **changes)  # type: ignore[arg-type]  # keyword arguments of one test each
    (folder / "out").mkdir()
    convert(gguf, folder / "out", "bfloat16", lambda done, total: None)
    return Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["Don", "'t", " pay", " 12345", " ", " now", "\n\n", " x", "=", "é", "1"]),
        ("smollm", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", " ", " now", "\n\n", " x", "=", "é", "1"]),
        ("llama-bpe", ["Don", "'t", " pay", " ", "123", "45", " ", " now", "\n\n", " x", "=é", "1"]),
        ("qwen2", ["Don", "'t", " pay", " ", "1", "2", "3", "4", "5", " ", " now", "\n\n", " x", "=é", "1"]),
        ("default", ["Don", "'", "t", " pay", " ", "123", "45", " ", " now", "\n\n", " x", "=", "é", "1"]),
    ],
)
def test_cuts(name: str, pieces: list[str]) -> None:
    cut = pre_tokenizer(name).pre_tokenize_str(TEXT)
    assert [TEXT[start:end] for _, (start, end) in cut] == pieces


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_name_makes_a_tokenizer(name: str, tmp_path: Path) -> None:
    tokenizer = _converted(tmp_path, pre=name)
    assert tokenizer.decode(tokenizer.encode(TEXT).ids) == TEXT


def test_bos_where_the_file_asks_for_it(tmp_path: Path) -> None:
    ids = _converted(tmp_path, bos=True).encode("the").ids
    assert ids == [1, *_converted_plain(tmp_path).encode("the").ids]


def _converted_plain(folder: Path) -> Tokenizer:
    (folder / "plain").mkdir()
    return _converted(folder / "plain")


def test_token_types(tmp_path: Path) -> None:
    tokenizer = _converted(tmp_path)
    added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    assert added["<|im_end|>"] is True
    assert added["<think>"] is False
    assert "the" not in added

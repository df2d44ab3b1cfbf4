"""Tokenizer files: what could abort or hang is refused before our process loads it; what is left is used."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import InvalidRequest, ModelError
from enginebay.limited import Helper
from enginebay.text import IncrementalDetokenizer, Tokenizer, _tokenizer_check
from support.fuzzing import SHORT, SOAK, TEXTS, Tally, fuzz, mutate_bytes, mutate_json
from support.tiny_tokenizers import KINDS

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
PARTS: tuple[Any, ...] = (
    *(
        {"type": kind}
        for kind in ("NFC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel", "Fuse", "ByteFallback")
    ),
    *(
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in (
            *("(a+)+$", "(a|a|ab)*c", "", "(", r"\p{N}{1,3}", r"(?<n>a\g<n>?b)*", "((a{100}){100}){100}", "." * 3000),
            *("(" * 500 + ")" * 500, r"(?i:'s|'t)| ?\p{L}+|\s+(?!\S)|\s+", "\0", "[", "(?=" * 50 + "a" + ")" * 50),
        )
    ),
    *(
        {"type": "Precompiled", "precompiled_charsmap": text}
        for text in ("", "AAAA", "/////w==", "CAAAAP////////8AAAAA")
    ),
    {"type": "Sequence", "normalizers": [REPLACE] * 4},
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}] * 3},
    {"type": "Sequence", "decoders": [REPLACE, REPLACE]},
    {"type": "Prepend", "prepend": "x" * 5000},
    {"type": "FixedLength", "length": 0},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63},
    {"type": "WordPiece", "prefix": "", "cleanup": True},
    {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "q", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    },
    {"type": "RobertaProcessing", "sep": ["x", 2**31], "cls": ["y", 4], "trim_offsets": True, "add_prefix_space": True},
    {"type": "BPE", "vocab": {"a": 0, "b": 2**32 - 1}, "merges": [], "continuing_subword_prefix": "éé"},
    {"type": "Unigram", "unk_id": 9, "vocab": [["a", -1.0]]},
    {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"},
    2**31,
    2**32 - 1,
    "</s>",
    0.5,
)
DEPTHS = {
    "file": "JSON|cannot read|column|expected|missing field|EOF|control character",
    "growth": "times as long",
    "parts": "nested more|added tokens|parts; at most",
    "pattern": "Onig",
    "died": "a trial of it",
    "request": "cannot be tokenized|cannot be decoded|lone surrogate",
}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process for all trials; else each case would start one."""
    own = Helper("enginebay.limited._tokenizers", memory=1 << 30, seconds=5.0, max_reply=1 << 20)

    class Shared:
        def __init__(self, *_: object, **__: object) -> None:
            self.call = own.call

        def close(self) -> None:
            """It goes on."""

    monkeypatch.setattr(_tokenizer_check, "Helper", Shared)
    yield
    own.close()


BASES = [json.loads(kind()._plain.to_str()) for kind in KINDS.values()]


def _file(chance: random.Random) -> bytes:
    tree = chance.choice(BASES)
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        tree = mutate_json(chance, tree, pool=PARTS)
    if isinstance(tree, dict) and chance.random() < 0.2:
        tree = {
            **tree,
            chance.choice(("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")): chance.choice(PARTS),
        }
    raw = json.dumps(tree).encode()
    act = chance.random()
    if act < 0.1:
        return mutate_bytes(chance, raw)
    if act < 0.12:
        return chance.choice((b"", b"[" * 100_000, b'{"model":' * 5_000, b"\xff\xfe", b'{"added_tokens":3}', b"null"))
    return raw


def _case(chance: random.Random, folder: Path) -> str | None:
    (folder / "tokenizer.json").write_bytes(_file(chance))
    tokenizer = Tokenizer.from_folder(folder)
    text = "".join(chance.choice((*TEXTS[:16], "a", "the and ", "<s>", "1984")) for _ in range(8))
    ids = tokenizer.encode(text)
    tokenizer.encode_with_affixes(text)
    assert isinstance(tokenizer.decode(ids), str)
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert isinstance(detokenizer.push(ids[:20]) + detokenizer.finish(), str)
    return "used"


def _run(folder: Path, count: int, seed: int) -> Tally:
    return fuzz(
        "tokenizers",
        lambda chance: _case(chance, folder),
        count=count,
        seed=seed,
        errors=(ModelError, InvalidRequest),
        depths=DEPTHS,
    )


def _check(tally: Tally) -> None:
    for label, least in (("used", 0.2), ("file", 0.1), ("growth", 0.005), ("pattern", 0.0002)):
        assert tally.share(label) >= least, label


@pytest.mark.usefixtures("tried")
def test_files(tmp_path: Path) -> None:
    _check(_run(tmp_path, SHORT, 1))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("tried")
def test_many_files(tmp_path: Path) -> None:
    _check(_run(tmp_path, SOAK, 2))

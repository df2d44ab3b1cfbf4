"""What a tokenizer.json may not ask for, looked for before the native library reads it; then it is tried in a child.

Decision: the library aborts the whole process when it gets no memory, and a file of 100 bytes can make it ask for any
amount: replace one character by a thousand, four times over. What text can grow to is therefore bounded by the file's
own words; whether the rest holds is found out by a process that may die. A violating change loads a file unchecked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from enginebay.errors import ModelError, one_line
from enginebay.limited import Helper, HelperFailed

MAX_TOKENIZER_BYTES = 128 << 20
MAX_PARTS = 256
"""Normalizers, pre-tokenizers, post-processors and decoders, all told."""
MAX_ADDED_TOKENS = 1 << 18
MAX_GROWTH = 64
"""How many times as long the parts may make a text."""
TRIAL_SECONDS = 60.0
TRIAL_MEMORY = 1 << 30
TRIAL_MEMORY_FACTOR = 32
"""Of the file's size, on top of that."""

_MAX_DEPTH = 32
_REMEMBERED = 256
_tried: dict[bytes, None] = {}


class _Added(msgspec.Struct):
    """An added token: only counted here."""


class _File(msgspec.Struct):
    """What is looked at. The vocabulary, most of the file, is passed over."""

    added_tokens: list[_Added] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


def check_tokenizer(text: str, where: str) -> None:
    """Raise ``ModelError`` for a tokenizer.json that grows texts without bound, or cannot be loaded and used."""
    digest = hashlib.sha256(text.encode()).digest()
    if digest in _tried:
        return
    _check_parts(text, where)
    _try(text, where)
    while len(_tried) >= _REMEMBERED:
        del _tried[next(iter(_tried))]
    _tried[digest] = None


def _check_parts(text: str, where: str) -> None:
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _unusable(where, str(error)) from None
    if len(file.added_tokens) > MAX_ADDED_TOKENS:
        raise _unusable(where, f"it has {len(file.added_tokens)} added tokens; at most {MAX_ADDED_TOKENS}")
    count = 0
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth = 1
        for part in _parts(getattr(file, name), where):
            count += 1
            growth *= _growth(part)
            if growth > MAX_GROWTH:
                raise _unusable(where, f"its {name} can make a text more than {MAX_GROWTH} times as long")
    if count > MAX_PARTS:
        raise _unusable(where, f"it has {count} parts; at most {MAX_PARTS}")


def _parts(tree: Any, where: str) -> Iterator[dict[str, Any]]:
    """Every part below ``tree``, itself included: objects with a type, whatever list they stand in."""
    todo = [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        if depth > _MAX_DEPTH:
            raise _unusable(where, f"its parts are nested more than {_MAX_DEPTH} deep")
        if isinstance(node, dict):
            if "type" in node:
                yield node
            todo += [(inner, depth + 1) for inner in node.values()]
        elif isinstance(node, list):
            todo += [(inner, depth + 1) for inner in node]


def _growth(part: dict[str, Any]) -> int:
    """How many characters at most come of one."""
    if part["type"] == "Precompiled":
        return _longest_mapping(part.get("precompiled_charsmap"))
    written = (part.get(key) for key in ("content", "prepend", "prefix", "suffix", "replacement"))
    return max([1, *(len(text) for text in written if isinstance(text, str))])


def _longest_mapping(charsmap: object) -> int:
    """The longest text that SentencePiece's compiled table has for a character; it holds texts after a trie.

    https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
    """
    try:
        raw = base64.b64decode(charsmap if isinstance(charsmap, str) else "", validate=True)
    except (binascii.Error, ValueError):
        return 1  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(1, max(map(len, texts.split(b"\0"))) // 2)  # at least two bytes to a character that is replaced


def _try(text: str, where: str) -> None:
    memory = TRIAL_MEMORY + TRIAL_MEMORY_FACTOR * len(text)
    helper = Helper("enginebay.limited._tokenizers", memory=memory, seconds=TRIAL_SECONDS, max_reply=1 << 20)
    try:
        found = helper.call({"text": text})
    except HelperFailed as error:
        raise _unusable(where, f"a trial of it {error}") from None
    finally:
        helper.close()
    if "broken" in found:
        raise _unusable(where, str(found["broken"]))


def _unusable(where: str, why: str) -> ModelError:
    return ModelError(one_line(f"{where} cannot be used: {why}"))

"""What each token adds to a text, as bytes: read off the tokenizer.json's decoder, and looked up by the library.

Byte-level vocabularies the library reads itself. Those that write "▁" for a space, and bytes as "<0x0A>" (Llama, Gemma,
Mistral …), it reads in part: their bytes are derived here, and what it is given does not depend on how they are spelt.

Such a decoder usually drops the space with which an answer begins. So the first token of an answer is another text than
the same token later, which ``Vocabulary.plain`` and ``Vocabulary.spaced`` tell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["Vocabulary", "load_vocabulary", "token_texts"]

_BYTE_TOKEN_CHARS: Final = 6
_READ: Final = "ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, Fuse and Strip"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The library's vocabulary, ``size`` tokens wide: as wide as the model's logits.

    Where an answer's first token loses its space, ``plain`` and ``spaced`` are packed masks of those that do not begin
    with one, and of those that lose exactly one; else both are None.
    """

    tokenizer: LLTokenizer
    size: int
    plain: int | None = None
    spaced: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Texts:
    """What each token adds, by id: ``first`` where it is an answer's first one, ``later`` everywhere else."""

    first: list[bytes]
    later: list[bytes]


def load_vocabulary(tokenizer: str, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    """The vocabulary of a tokenizer.json's text. It takes a second, and the GIL.

    Raises ``ValueError`` for a tokenizer whose tokens have no text of their own.
    """
    from llguidance import LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    described = json.loads(tokenizer)
    if "ByteLevel" in _kinds(described.get("decoder")):
        read = LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        return Vocabulary(tokenizer=read, size=vocab_size)
    texts = token_texts(described, vocab_size)
    control = {one["id"] for one in described.get("added_tokens", ()) if _is_control(one)} | set(eos_token_ids)
    words = _Words(described, texts.later, sorted(one for one in control if one < vocab_size), eos_token_ids[0])
    read = LLTokenizer(TokenizerWrapper(words), n_vocab=vocab_size, eos_token=list(eos_token_ids))
    pairs = list(zip(texts.first, texts.later, strict=True))
    if all(first == later for first, later in pairs):
        return Vocabulary(tokenizer=read, size=vocab_size)
    return Vocabulary(
        tokenizer=read,
        size=vocab_size,
        plain=_packed(first == later for first, later in pairs),
        spaced=_packed(later == b" " + first for first, later in pairs),
    )


def token_texts(described: dict[str, Any], vocab_size: int) -> _Texts:
    """The bytes of each of ``vocab_size`` tokens, b"" where there is none. Raises ``ValueError``: not that decoder."""
    first_steps, later_steps = _steps(described.get("decoder"))
    texts = _Texts(first=[b""] * vocab_size, later=[b""] * vocab_size)
    for token_id, token in _tokens(described):
        if token_id < vocab_size:
            texts.first[token_id] = _text(token, first_steps)
            texts.later[token_id] = _text(token, later_steps)
    return texts


class _Words:
    """What the library asks of a tokenizer that it does not read itself."""

    def __init__(self, described: dict[str, Any], texts: list[bytes], control: list[int], eos: int) -> None:
        from tokenizers import Tokenizer

        self.tokens = texts
        self.special_token_ids = control
        self.eos_token_id = eos
        self.bos_token_id = None
        self._ids: dict[bytes, int] = {}
        no_text = set(control)
        for token_id, text in enumerate(texts):
            if text and token_id not in no_text:
                self._ids.setdefault(text, token_id)
        self._longest = max(map(len, self._ids), default=1)
        self._tokenizer = Tokenizer.from_str(json.dumps(_for_the_middle(described)))
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True

    def __call__(self, data: bytes) -> list[int]:
        """The tokens of a part of an answer that is not its beginning, as the tokenizer cuts it, if it can."""
        try:
            ids: list[int] = self._tokenizer.encode(data.decode(), add_special_tokens=False).ids
        except Exception:  # of whatever class: no text, or the tokenizer's own
            return self._cut(data)
        same = all(one < len(self.tokens) for one in ids) and b"".join(self.tokens[one] for one in ids) == data
        return ids if same else self._cut(data)

    def _cut(self, data: bytes) -> list[int]:
        """The same by the longest token at each place; a byte that no token has is left out."""
        ids, at = [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 0, -1):
                if (found := self._ids.get(data[at : at + length])) is not None:
                    ids.append(found)
                    at += length
                    break
            else:
                at += 1
        return ids


_Step = Callable[[str | bytes], str | bytes]


def _text(token: str, steps: Iterable[_Step]) -> bytes:
    text: str | bytes = token
    for step in steps:
        text = step(text)
    return text if isinstance(text, bytes) else text.encode()


def _steps(decoder: Any) -> tuple[list[_Step], list[_Step]]:
    """What a decoder does with an answer's first token, and with each later one."""
    first: list[_Step] = []
    later: list[_Step] = []
    fused = False
    for one in _flat(decoder):
        kind = one["type"]
        if kind == "Fuse":
            fused = True
        elif kind == "ByteFallback" and not fused:
            first.append(_byte)
            later.append(_byte)
        elif kind == "Replace" and not fused and "String" in one["pattern"]:
            first.append(_replace(one["pattern"]["String"], one["content"]))
            later.append(first[-1])
        elif kind == "Metaspace" and not fused:
            first.append(_replace(one["replacement"], "" if _prepends(one) else " "))
            later.append(_replace(one["replacement"], " "))
        elif kind == "Strip" and fused and one["content"] == " " and one["start"] <= 1 and not one["stop"]:
            if one["start"]:
                first.append(_without_space)
        else:
            raise ValueError(f"its decoder has {kind}{' after Fuse' if fused else ''}, and must be {_READ}")
    if not _kinds(decoder):
        raise ValueError(f"it has no decoder, and must have {_READ}")
    return first, later


def _prepends(metaspace: dict[str, Any]) -> bool:
    """Whether a space is put before a text, and taken off again."""
    return metaspace.get("prepend_scheme", "always") != "never" and bool(metaspace.get("add_prefix_space", True))


def _replace(old: str, new: str) -> _Step:
    return lambda text: text if isinstance(text, bytes) else text.replace(old, new)


def _byte(text: str | bytes) -> str | bytes:
    """The byte that "<0x0A>" means, else the text."""
    if isinstance(text, str) and len(text) == _BYTE_TOKEN_CHARS and text.startswith("<0x") and text.endswith(">"):
        with suppress(ValueError):
            return bytes.fromhex(text[3:5])
    return text


def _without_space(text: str | bytes) -> str | bytes:
    return text.removeprefix(b" ") if isinstance(text, bytes) else text.removeprefix(" ")


def _for_the_middle(described: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer without the space that it puts before a text."""
    found: dict[str, Any] = json.loads(json.dumps(described))
    for name in ("normalizer", "pre_tokenizer"):
        for one in _flat(found.get(name)):
            if one["type"] == "Metaspace":
                one["prepend_scheme"] = "never"
                one.pop("add_prefix_space", None)
            elif one["type"] == "Prepend":
                one.update({"type": "Replace", "pattern": {"String": " "}, "content": " "})
                del one["prepend"]
    return found


def _flat(part: Any) -> Iterator[dict[str, Any]]:
    """A normalizer's, pre-tokenizer's or decoder's parts, in order."""
    if not part:
        return
    inner = next((part[name] for name in ("decoders", "normalizers", "pretokenizers") if name in part), None)
    if inner is None:
        yield part
        return
    for one in inner:
        yield from _flat(one)


def _kinds(decoder: Any) -> set[str]:
    return {str(one["type"]) for one in _flat(decoder)}


def _tokens(described: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Each token's id and spelling; an added one wins."""
    vocabulary = described["model"]["vocab"]
    if isinstance(vocabulary, dict):
        yield from ((int(token_id), token) for token, token_id in vocabulary.items())
    else:  # a unigram model's, with scores
        yield from enumerate(str(token) for token, _ in vocabulary)
    yield from ((int(one["id"]), str(one["content"])) for one in described.get("added_tokens", ()))


def _is_control(token: dict[str, Any]) -> bool:
    """Whether an added token is no text: also one that looks as if it were none, as the library has it."""
    content = str(token["content"])
    return bool(token["special"]) or (content.startswith("<") and content.endswith(">"))


def _packed(allowed: Iterable[bool]) -> int:
    """A mask as one number: bit i is token i."""
    return int("".join("01"[one] for one in allowed)[::-1], 2)

"""Token ids to text as they come, never half a character, at a constant cost per token.

What ``push`` and ``finish`` return, put together, is what decoding all ids at once gives.

Decision: where the tokenizer falls back to byte tokens, a run of them is final only when it ends, since one byte that
fits nowhere turns the whole run into U+FFFD, what was shown of it too. So nothing of a run streams before its end (text
that clients saw is never taken back), but ``ahead`` tells how it reads so far, and stop strings are looked for in that:
a text that stops there has no later byte. A violating change shows ``ahead`` to clients.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Protocol

from enginebay.text._tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_REPLACEMENT = "\ufffd"
_MAX_HELD = 8  # tokens that an unfinished character can spread over, and more
_MAX_CONTEXT = 32


class IncrementalDetokenizer:
    """The text of one growing answer. Not thread-safe; one object per answer."""

    __slots__ = ("_strategy",)

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._strategy: _Strategy = (
            _ByteLevel(tokenizer, skipped) if tokenizer.is_byte_level else _Window(tokenizer, skipped)
        )

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain after these tokens and was not before; "" while a character is incomplete."""
        push = self._strategy.push
        return push(token_ids[0]) if len(token_ids) == 1 else "".join(map(push, token_ids))

    def ahead(self, length: int) -> str:
        """The last ``length`` characters of what ``finish`` would return, if it ends with a run of bytes that is whole.

        "" without one, or inside a character.
        """
        return self._strategy.ahead(length)

    def finish(self) -> str:
        """What was held back, when nothing follows; an incomplete character comes out as U+FFFD."""
        return self._strategy.finish()


class _Strategy(Protocol):
    def push(self, token_id: int) -> str: ...

    def ahead(self, length: int) -> str: ...

    def finish(self) -> str: ...


class _ByteLevel:
    """Byte-level vocabularies: each token is a run of bytes, whatever stands around it."""

    __slots__ = ("_held", "_pieces", "_skipped")

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._pieces, self._skipped = tokenizer.pieces, skipped
        self._held = b""

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        piece = self._pieces[token_id]
        if isinstance(piece, str):
            if not self._held:
                return piece
            piece = piece.encode()
        data = self._held + piece
        text, taken = codecs.utf_8_decode(data, "replace", False)
        self._held = data[taken:]
        return text

    def ahead(self, length: int) -> str:
        return ""  # what is held is part of one character

    def finish(self) -> str:
        held, self._held = self._held, b""
        return held.decode(errors="replace")


class _Window:
    """Any other decoder: decode the newest tokens with some before them, and take what that adds.

    A run of byte tokens is held until it ends, because its last byte decides how all of it reads.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer, self._skipped = tokenizer, skipped
        self._context: list[int] = []
        self._held: list[int] = []
        self._run = _Run()

    def push(self, token_id: int) -> str:
        token = None if token_id in self._skipped else self._tokenizer.token(token_id)
        if token is None:
            return ""
        self._held.append(token_id)
        if self._tokenizer.falls_back_to_bytes and _BYTE_TOKEN.fullmatch(token):
            self._run.push(int(token[3:5], 16))
            return ""
        return self._release(final=False)

    def ahead(self, length: int) -> str:
        if not self._run.whole:
            return ""
        # what stands before the run, or a decoder strips at the start, counts only while the run is short
        text = self._run.text if len(self._run.text) > length else self._added()
        return text[-length:]

    def finish(self) -> str:
        return self._release(final=True) if self._held else ""

    def _release(self, *, final: bool) -> str:
        self._run = _Run()
        added = self._added()
        if not final and added.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD:
            return ""
        if self._decode(self._held):
            self._context = self._held[-_MAX_CONTEXT:]
        else:  # nothing to see yet: a space that the decoder strips at the start, say
            self._context = (self._context + self._held)[-_MAX_CONTEXT:]
        self._held = []
        return added

    def _added(self) -> str:
        return self._decode(self._context + self._held)[len(self._decode(self._context)) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""


class _Run:
    """How a run of bytes reads; once it is broken, each byte is U+FFFD for good. ``whole``: not inside a character."""

    def __init__(self) -> None:
        self.text, self.whole = "", False
        self._decoder, self._count = codecs.getincrementaldecoder("utf-8")(), 0
        self._broken = False

    def push(self, byte: int) -> None:
        self._count += 1
        if not self._broken:
            try:
                character = self._decoder.decode(bytes([byte]))
            except UnicodeDecodeError:
                self._broken = True
            else:
                self.text, self.whole = self.text + character, bool(character)
                return
        self.text, self.whole = _REPLACEMENT * self._count, True

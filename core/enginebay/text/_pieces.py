"""What each token of a byte-level vocabulary reads as, worked out once for all answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class Pieces(dict[int, str | bytes]):
    """By token id: its text, or its bytes where they are not whole characters; "" for an id outside the vocabulary.

    It fills as tokens come, in the order of a vocabulary at most. Thread-safe: two threads write the same.
    """

    def __init__(self, token: Callable[[int], str | None]) -> None:
        """``token`` says how the vocabulary writes an id, None for one outside of it."""
        super().__init__()
        self._token = token

    def __missing__(self, token_id: int) -> str | bytes:
        token = self._token(token_id)
        if token is None:  # not kept: there is no end of such ids
            return ""
        try:
            data = bytes(BYTE_OF[character] for character in token)
        except KeyError:  # an added token is text as it stands
            data = token.encode()
        try:
            self[token_id] = data.decode()
        except UnicodeDecodeError:
            self[token_id] = data
        return self[token_id]


def _byte_alphabet() -> dict[str, int]:
    """The characters with which byte-level vocabularies write the 256 bytes (GPT-2's table).

    Printable Latin-1 characters stand for themselves; the others are written from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()

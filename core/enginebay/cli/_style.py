"""What is printed: text from elsewhere is made harmless before it reaches a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


_WIDE = 56
"""Characters of a cell that others are aligned with."""


def printable(text: str) -> str:
    """The text with control and bidirectional characters escaped; newline and tab stay."""
    return "".join(
        c if c in "\n\t" or not (unicodedata.category(c) in ("Cc", "Cs") or c in _BIDI) else f"\\u{ord(c):04x}"
        for c in text
    )


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with their cells aligned, indented by two; the last is not padded, and a very long one moves its row."""
    cells = range(len(rows[0]) - 1) if rows else ()
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= _WIDE), default=0) for i in cells]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]

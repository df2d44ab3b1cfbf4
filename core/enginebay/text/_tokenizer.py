"""A model's tokenizer: user text is plain text, special tokens only where the caller says so.

Decision: text from users never becomes a control token. ``encode`` therefore takes special tokens for plain text
unless told otherwise, by a second tokenizer object that is set so once: flipping the switch on a shared object would
race between threads. A violating change calls ``encode(..., special=True)`` on anything a user wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import tokenizers
import tokenizers.decoders

from enginebay.errors import InvalidRequest, ModelError

T = TypeVar("T")


class Tokenizer:
    """Encodes and decodes with one model's tokenizer.json. Thread-safe; make it with ``from_folder``."""

    def __init__(self, text: str, where: str) -> None:
        """``text`` is the content of a tokenizer.json, ``where`` its name in messages. Raises ``ModelError``."""
        self._where = where
        self._plain = self._load(text)
        self._plain.encode_special_tokens = True
        self._others: dict[str | None, tokenizers.Tokenizer] = {}
        added = self._plain.get_added_tokens_decoder()
        self.special_tokens: dict[int, tokenizers.AddedToken] = {i: t for i, t in added.items() if t.special}
        self.special_ids = frozenset(self.special_tokens)
        self.vocab_size = max(self._plain.get_vocab_size(), max(added, default=-1) + 1)
        self.is_byte_level = isinstance(self._plain.decoder, tokenizers.decoders.ByteLevel)
        self.falls_back_to_bytes = "ByteFallback" in repr(self._plain.decoder)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read ``folder/tokenizer.json`` (or ``folder`` itself, when it is such a file). Raises ``ModelError``."""
        path = folder / "tokenizer.json" if folder.is_dir() else folder
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ModelError(
                f"{path.parent} has no {path.name}; fetch it from where the model came from, or set [model] tokenizer"
            ) from None
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        return cls(text, str(path))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of ``text``, nothing added. ``special`` parses special tokens in it; else they are plain text.

        Raises ``InvalidRequest`` for what is no text (a lone surrogate).
        """
        return _encode(self._other(None) if special else self._plain, text)

    def encode_with_affixes(self, text: str) -> list[int]:
        """The ids of plain ``text``, with what the tokenizer's post-processor puts around it (usually bos)."""
        return _encode(self._plain, text, affixes=True)

    def encode_marked(self, text: str, mark: str, ids: Sequence[int]) -> list[int]:
        """The ids of plain ``text`` in which the n-th ``mark`` (one character) stands for the special token ``ids[n]``.

        The mark acts on the text around it just as a special token does.
        """
        marked = self._other(mark)
        mark_id, left = marked.token_to_id(mark), iter(ids)
        found = [next(left) if token == mark_id else token for token in _encode(marked, text)]
        assert next(left, None) is None, "a mark was lost"
        return found

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; ids outside the vocabulary give nothing."""
        return _guarded(
            lambda: self._plain.decode(list(ids), skip_special_tokens=skip_special_tokens),
            lambda why: InvalidRequest(f"these token ids cannot be decoded: {why}"),
        )

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it, or None outside of it."""
        return self._plain.id_to_token(token_id)

    def special_pattern(self) -> re.Pattern[str] | None:
        """Matches each special token, the longest first, with the space that it swallows; None without any."""
        tokens = sorted(self.special_tokens.values(), key=lambda token: -len(token.content))
        parts = [
            (r"\s*" if t.lstrip else "")
            + (r"(?<!\w)" if t.single_word else "")
            + f"(?P<_{number}>{re.escape(t.content)})"
            + (r"(?!\w)" if t.single_word else "")
            + (r"\s*" if t.rstrip else "")
            for number, t in enumerate(tokens)
            if t.content
        ]
        return re.compile("|".join(parts)) if parts else None

    def _other(self, mark: str | None) -> tokenizers.Tokenizer:
        """The tokenizer that parses special tokens (None), or takes ``mark`` for a token; loaded on first use."""
        if mark not in self._others:  # two threads may both load it: the same, once too often
            other = self._load(self._plain.to_str())
            if mark is None:
                other.encode_special_tokens = False
            else:
                other.encode_special_tokens = True
                other.add_tokens([tokenizers.AddedToken(mark, special=False, normalized=False)])
            self._others[mark] = other
        return self._others[mark]

    def _load(self, text: str) -> tokenizers.Tokenizer:
        loaded = _guarded(
            lambda: tokenizers.Tokenizer.from_str(text), lambda why: ModelError(f"{self._where} cannot be used: {why}")
        )
        loaded.no_truncation()
        loaded.no_padding()
        return loaded


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a plain completion prompt, with bos where the tokenizer's own post-processor puts it."""
    return tokenizer.encode_with_affixes(text)


def _encode(tokenizer: tokenizers.Tokenizer, text: str, *, affixes: bool = False) -> list[int]:
    for position, character in enumerate(text) if not text.isascii() else ():
        if "\ud800" <= character <= "\udfff":
            raise InvalidRequest(
                f"character {position} is a lone surrogate (U+{ord(character):04X}), which is no text; send valid UTF-8"
            )
    return _guarded(
        lambda: tokenizer.encode(text, add_special_tokens=affixes).ids,
        lambda why: InvalidRequest(f"the text cannot be tokenized: {why}"),
    )


def _guarded(action: Callable[[], T], failure: Callable[[str], Exception]) -> T:
    """``action()``; whatever the native library raises, a panic included, comes out as ``failure(why)``."""
    try:
        return action()
    except Exception as error:
        raise failure(_first_line(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's panic derives from BaseException; the others pass
            raise
        raise failure(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

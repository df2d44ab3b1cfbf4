"""A model's tokenizer: user text is plain text, special tokens only where the caller says so.

Decision: text from users never becomes a control token. ``encode`` therefore takes special tokens for plain text
unless told otherwise, by a second tokenizer object that is set so once: flipping the switch on a shared object would
race between threads. A violating change calls ``encode(..., special=True)`` on anything a user wrote.

Control tokens are the special ones, and those that the model's chat template writes: some models mark their role tokens
``"special": false``. Decoding shows and skips tokens as tokenizer.json says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import tokenizers
import tokenizers.decoders

from enginebay.errors import InvalidRequest, ModelError, one_line
from enginebay.models._files import is_folder, is_there, read_text
from enginebay.text._pieces import Pieces
from enginebay.text._template import ChatTemplate
from enginebay.text._tokenizer_check import MAX_TOKENIZER_BYTES, check_tokenizer

MARKS = ("\ufdd0", "\ufdd1")  # noncharacters; each that gets used costs a tokenizer
MAX_TEXT_BYTES = 12 << 20
"""Of one text that is tokenized: the library takes about 0.7 s and up to 250 MB for each MiB."""
_MAX_SEARCHED = 1 << 32
T = TypeVar("T")


class Tokenizer:
    """Encodes and decodes with one model's tokenizer.json. Thread-safe. ``from_folder`` checks the file, too."""

    def __init__(self, text: str, where: str, template: ChatTemplate | None = None) -> None:
        """``text`` is the content of a tokenizer.json, ``where`` its name in messages. Raises ``ModelError``.

        ``template`` is the one that conversations will be written with.
        """
        self.where = where
        self._decoder = self._load(text)
        self._added = self._model_error(self._decoder.get_added_tokens_decoder)
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        if template is not None and len(self._added) * len(template.literals) > _MAX_SEARCHED:
            raise ModelError(f"{where} cannot be used: {len(self._added)} added tokens are too many for its template")
        written = {i for i, token in self._added.items() if template is not None and template.writes(token.content)}
        self.control_tokens = {i: t for i, t in self._added.items() if t.content and (t.special or i in written)}
        hidden = written - self.special_ids
        self._plain = self._load(_made_special(text, hidden)) if hidden else self._decoder
        self._plain.encode_special_tokens = True
        self._others: dict[str | None, tokenizers.Tokenizer] = {}
        vocab_size = self._model_error(self._decoder.get_vocab_size)
        self.vocab_size = max(vocab_size, max(self._added, default=-1) + 1)
        self.is_byte_level = isinstance(self._decoder.decoder, tokenizers.decoders.ByteLevel)
        self.falls_back_to_bytes = "ByteFallback" in self._model_error(lambda: repr(self._decoder.decoder))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read ``folder/tokenizer.json`` (or ``folder`` itself, when it is such a file). Raises ``ModelError``.

        A chat template beside it tells which tokens are control tokens.
        """
        path = folder / "tokenizer.json" if is_folder(folder) else folder
        if not is_there(path):
            raise ModelError(
                f"{path.parent} has no {path.name}; fetch it from where the model came from, or set [model] tokenizer"
            )
        text = read_text(path, MAX_TOKENIZER_BYTES)
        check_tokenizer(text, str(path))
        try:
            template = ChatTemplate.from_folder(path.parent)
        except ModelError:  # none, or a broken one: plain prompts work without, and who chats is told
            template = None
        return cls(text, str(path), template)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of ``text``, nothing added. Control tokens in it are plain text, unless ``special`` parses them.

        Raises ``InvalidRequest`` for what is no text (a lone surrogate).
        """
        return _encode(self._other(None) if special else self._plain, text)

    def encode_with_affixes(self, text: str) -> list[int]:
        """The ids of plain ``text``, with what the tokenizer's post-processor puts around it (usually bos)."""
        return _encode(self._plain, text, affixes=True)

    def encode_marked(self, text: str, mark: str, ids: Sequence[int]) -> list[int]:
        """The ids of plain ``text`` in which the n-th ``mark`` (one character) stands for the token ``ids[n]``.

        The mark acts on the text around it just as a special token does. ``mark`` is one of ``MARKS``.
        """
        marked = self._other(mark)
        mark_id, left = marked.token_to_id(mark), iter(ids)
        found = [next(left) if token == mark_id else token for token in _encode(marked, text)]
        assert next(left, None) is None, "a mark was lost"
        return found

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; ids outside the vocabulary give nothing."""
        return _guarded(
            lambda: self._decoder.decode(list(ids), skip_special_tokens=skip_special_tokens),
            lambda why: InvalidRequest(f"these token ids cannot be decoded: {why}"),
        )

    def to_json(self) -> str:
        """The text of a tokenizer.json that means the same."""
        return self._model_error(self._decoder.to_str)

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it, or None outside of it."""
        return self._decoder.id_to_token(token_id)

    @functools.cached_property
    def pieces(self) -> Pieces:
        """What each token reads as, where the vocabulary is byte-level."""
        return Pieces(self.token)

    @functools.cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Matches each control token, the longest first."""
        tokens = sorted(self.control_tokens.values(), key=lambda token: -len(token.content))
        parts = [rf"(?<!\w){re.escape(t.content)}(?!\w)" if t.single_word else re.escape(t.content) for t in tokens]
        return re.compile("|".join(parts) or r"(?!)")

    @functools.cached_property
    def control_edges(self) -> frozenset[str]:
        """The characters with which control tokens begin and end, space left aside where there is more."""
        texts = [token.content.strip() or token.content for token in self.control_tokens.values()]
        return frozenset(text[at] for text in texts for at in (0, -1))

    def may_hold_control(self, text: str) -> bool:
        """Whether ``text`` has a character of ``control_edges``, as it stands or as the normalizer writes it."""
        if not self.control_edges.isdisjoint(text):
            return True
        normalizer = self._decoder.normalizer
        if text.isascii() or normalizer is None or not any(t.normalized for t in self.control_tokens.values()):
            return False
        _check_text(text)
        normalized = _guarded(
            lambda: normalizer.normalize_str(text),
            lambda why: InvalidRequest(f"the text cannot be normalized: {why}"),
        )
        return not self.control_edges.isdisjoint(normalized)

    def unguarded(self, template: ChatTemplate) -> str | None:
        """A token that ``template`` writes and that is no control token here; None when all are."""
        others = (token.content for i, token in self._added.items() if i not in self.control_tokens)
        return next(filter(template.writes, others), None)

    def _other(self, mark: str | None) -> tokenizers.Tokenizer:
        """The tokenizer that parses special tokens (None), or takes ``mark`` for a token; loaded on first use."""
        if mark not in self._others:  # two threads may both load it: the same, once too often
            other = self._load(self._model_error((self._decoder if mark is None else self._plain).to_str))
            other.encode_special_tokens = mark is not None
            if mark is not None:
                assert mark in MARKS
                token = tokenizers.AddedToken(mark, special=False, normalized=False)
                self._model_error(lambda: other.add_tokens([token]))
            self._others[mark] = other
        return self._others[mark]

    def _load(self, text: str) -> tokenizers.Tokenizer:
        loaded = self._model_error(lambda: tokenizers.Tokenizer.from_str(text))
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    def _model_error(self, action: Callable[[], T]) -> T:
        """``action()``, whose failure is the file's."""
        return _guarded(action, lambda why: ModelError(one_line(f"{self.where} cannot be used: {why}")))


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a plain completion prompt, with bos where the tokenizer's own post-processor puts it."""
    return tokenizer.encode_with_affixes(text)


def _encode(tokenizer: tokenizers.Tokenizer, text: str, *, affixes: bool = False) -> list[int]:
    _check_text(text)
    return _guarded(
        lambda: tokenizer.encode(text, add_special_tokens=affixes).ids,
        lambda why: InvalidRequest(f"the text cannot be tokenized: {why}"),
    )


def _check_text(text: str) -> None:
    try:
        size = len(text) if len(text) > MAX_TEXT_BYTES else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"character {error.start} is a lone surrogate (U+{ord(text[error.start]):04X}), which is no text; "
            "send valid UTF-8"
        ) from None
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest(f"the text has {len(text)} characters; at most {MAX_TEXT_BYTES >> 20} MiB are tokenized")


def _made_special(text: str, ids: Collection[int]) -> str:
    """The tokenizer.json ``text`` with these added tokens marked special."""
    data = json.loads(text)
    for token in data["added_tokens"]:
        token["special"] |= token["id"] in ids
    return json.dumps(data)


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
    return one_line((str(error).splitlines() or [""])[0] or type(error).__name__, 200)

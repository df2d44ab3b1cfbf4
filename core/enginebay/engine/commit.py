"""What of a runner's output comes to exist: trimming at eos, stop tokens, stop strings and lengths. Pure.

A row's text state is a function of its committed tokens alone (feed them again and it is the same), so nothing of it
is kept in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from msgspec import Struct

from enginebay.messages import FinishReason, SamplingParams

__all__ = ["Detokenizer", "DetokenizerFactory", "Ends", "StopStrings", "TextState", "Trimmed", "no_text", "trim"]


class Detokenizer(Protocol):
    """Text of tokens as they come, never half a character; ``enginebay.text.IncrementalDetokenizer`` is one."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens made final."""

    def ahead(self, length: int) -> str:
        """The last ``length`` characters of what ``finish`` would return, if stop strings count in it; else ""."""

    def finish(self) -> str:
        """What was held back until now."""


DetokenizerFactory = Callable[[bool], Detokenizer]
"""Makes a detokenizer; the argument is ``skip_special_tokens``."""


class _NoText:
    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def ahead(self, length: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


_NO_TEXT: Final = _NoText()
"""It keeps nothing, so all share it."""


def no_text(skip_special_tokens: bool) -> Detokenizer:
    """A detokenizer for a model that has no tokenizer: its text is always empty."""
    return _NO_TEXT


class StopStrings:
    """Finds the first stop string in text that comes in pieces, in time linear in the text.

    One Knuth-Morris-Pratt automaton per stop string, so the answer does not depend on where the pieces are cut: the
    match that ends first wins, and of those that end at one character the longest, that is the one that cuts most.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._tables = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> tuple[str, str | None]:
        """The text that can be shown now, and the stop string that ended it, if one did and ``may_end``."""
        if not self._stops:
            return text, None
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            found = self._step(buffer[position])
            if found is not None and may_end:
                self._held = ""
                return buffer[: position + 1 - len(found)], found
        keep = max(self._matched)
        self._held = buffer[len(buffer) - keep :] if keep else ""
        return buffer[: len(buffer) - keep], None

    def ends_with_stop(self, ahead: str) -> bool:
        """Whether a stop string would end just where ``ahead`` does, if that came next.

        Of ``ahead``, as many characters as the longest stop string has are enough.
        """
        return (self._held + ahead).endswith(self._stops)

    def finish(self) -> str:
        """The text that was held back because a stop string could have begun there."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        found: str | None = None
        for index, stop in enumerate(self._stops):
            matched, table = self._matched[index], self._tables[index]
            while matched and stop[matched] != character:
                matched = table[matched - 1]
            if stop[matched] == character:
                matched += 1
            self._matched[index] = matched
            if matched == len(stop):
                found = stop if found is None or len(stop) > len(found) else found
                self._matched[index] = table[matched - 1]
        return found


def _failure_table(pattern: str) -> list[int]:
    """For each prefix of the pattern, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[length] != pattern[index]:
            length = table[length - 1]
        if pattern[length] == pattern[index]:
            length += 1
        table[index] = length
    return table


@final
class TextState:
    """A row's way from tokens to text that clients may see; without stop strings, its detokenizer is all of it."""

    __slots__ = ("_longest", "_stops", "detokenizer")

    def __init__(self, params: SamplingParams, detokenizer: Detokenizer) -> None:
        self.detokenizer = detokenizer
        self._stops = StopStrings(params.stop) if params.stop else None
        self._longest = max(map(len, params.stop), default=0)

    def push(self, token_id: int, *, may_end: bool = True) -> tuple[str, str | None]:
        """The text that this token made final, and the stop string that it completed, if it did and ``may_end``."""
        text = self.detokenizer.push((token_id,))
        if self._stops is None:
            return text, None
        text, stop = self._stops.push(text, may_end=may_end)
        if not may_end or stop is not None:
            return text, stop
        if self._stops.ends_with_stop(self.detokenizer.ahead(self._longest)):
            tail, stop = self.finish()
            text += tail
        return text, stop

    def finish(self, *, may_end: bool = True) -> tuple[str, str | None]:
        """All that was held back, at the row's end; it too may complete a stop string."""
        text = self.detokenizer.finish()
        if self._stops is None:
            return text, None
        text, stop = self._stops.push(text, may_end=may_end)
        return (text, stop) if stop is not None else (text + self._stops.finish(), None)


_NONE: Final[frozenset[int]] = frozenset()
"""One for all: each that a request has of its own is one more for the collector to look at."""


class Ends(Struct, frozen=True, gc=False):
    """What ends a row beside its text: ``eos`` (empty if ignored), its ``stop`` tokens, or the ``most``-th token.

    Of a row it stays the same, so it is worked out once.
    """

    eos: frozenset[int]
    stop: frozenset[int]
    most: int

    @classmethod
    def of(
        cls, params: SamplingParams, *, num_prompt_tokens: int, eos_token_ids: frozenset[int], max_model_len: int
    ) -> Ends:
        """Of a request as it was asked for."""
        return cls(
            eos=_NONE if params.ignore_eos else eos_token_ids,
            stop=frozenset(params.stop_token_ids) if params.stop_token_ids else _NONE,
            most=min(params.max_tokens, max_model_len - num_prompt_tokens),
        )


class Trimmed(Struct, frozen=True, kw_only=True, gc=False):
    """What a row gets of the tokens that were drawn for it. ``stop_reason``: the stop token or string; None for eos."""

    token_ids: tuple[int, ...]
    text: str = ""
    finish: FinishReason | None = None
    stop_reason: str | int | None = None


def trim(drawn: Sequence[int], *, ends: Ends, min_tokens: int, text: TextState, num_output_tokens: int) -> Trimmed:
    """Take drawn tokens until one ends the request; the rest never existed.

    Per token, in this order: eos (unless ignored) and stop tokens, which stay out of the text; a stop string, from the
    ``min_tokens``-th token on; the length caps. The first that holds decides. That eos is not drawn too early is the
    runner's work: one that is drawn ends the request.
    """
    taken: list[int] = []
    pieces: list[str] = []
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    for token_id in drawn:
        taken.append(token_id)
        count = num_output_tokens + len(taken)
        may_end = count >= min_tokens
        if token_id in ends.eos:
            finish = FinishReason.STOP
        elif token_id in ends.stop:
            finish, stop_reason = FinishReason.STOP, token_id
        else:
            piece, stop = text.push(token_id, may_end=may_end)
            pieces.append(piece)
            if stop is not None:
                return Trimmed(token_ids=tuple(taken), text="".join(pieces), finish=FinishReason.STOP, stop_reason=stop)
            if count >= ends.most:
                finish = FinishReason.LENGTH
        if finish is not None:
            tail, stop = text.finish(may_end=may_end)
            pieces.append(tail)
            if stop is not None:
                finish, stop_reason = FinishReason.STOP, stop
            break
    return Trimmed(token_ids=tuple(taken), text="".join(pieces), finish=finish, stop_reason=stop_reason)

"""A client's shape is compiled in a child process first, which may die of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from enginebay.errors import one_line
from enginebay.limited import Helper, HelperFailed, OverLimit
from enginebay.messages import StructuredOutput
from enginebay.structured._definitions import form_of
from enginebay.structured._interfaces import GrammarFailed, GrammarUnavailable

__all__ = ["TooSlow", "Trial", "Unreadable"]

_CALL_SECONDS: Final = 60.0
_MAX_REPLY: Final = 16 << 20
_MAX_WHY: Final = 600


class TooSlow(GrammarFailed):
    """It was not done in time, and was stopped."""


class Unreadable(GrammarFailed):
    """No grammar works with the model, whatever it is."""


class Trial:
    """One child, which starts with the first shape; for one thread. ``tokenizer`` returns a tokenizer.json's text."""

    def __init__(
        self,
        tokenizer: Callable[[], str],
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        seconds: float,
        memory: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._asked = {"vocab_size": vocab_size, "eos_token_ids": list(eos_token_ids)}
        self._seconds = seconds
        self.helper = Helper("enginebay.structured._child", memory=memory, seconds=_CALL_SECONDS, max_reply=_MAX_REPLY)

    def definition(self, structured: StructuredOutput) -> str:
        """The definition that compiled in the child. Raises ``GrammarFailed``; ``TooSlow`` when its time was over."""
        kind, value = form_of(structured)
        request = {"kind": kind, "value": value, "seconds": self._seconds}
        try:
            found = self._call(request)
        except OverLimit as error:
            raise GrammarFailed(f"compiling it {error}") from None
        except HelperFailed:  # perhaps something else ended it: once more
            try:
                found = self._call(request)
            except HelperFailed as error:
                raise GrammarFailed(f"compiling it {error}") from None
        if found.get("late"):
            self.helper.close()
            raise TooSlow(f"compiling it took longer than {self._seconds:g} s and was stopped")
        if "definition" not in found:
            raise GrammarFailed(str(found.get("broken", "it does not compile")))
        return str(found["definition"])

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._prepare()
            return self.helper.call(request)
        except (HelperFailed, GrammarUnavailable):
            if self.helper.is_shut:
                raise GrammarUnavailable("the engine is closed") from None
            raise

    def _prepare(self) -> None:
        """One that has just started has no vocabulary. What fails here is no grammar's fault."""
        with suppress(HelperFailed):  # it died between two calls: the next one starts another
            if not self.helper.call({}).get("empty"):
                return
        try:
            found = self.helper.call(self._asked | {"tokenizer": self._tokenizer()})
        except HelperFailed as error:
            why = one_line(f"no grammar can be compiled: the helper {error}", _MAX_WHY)
            raise GrammarUnavailable(why) from None
        if "broken" in found:
            why = f"structured does not work with the model's tokenizer: {found['broken']}; leave it out"
            raise Unreadable(one_line(" ".join(why.split()), _MAX_WHY))

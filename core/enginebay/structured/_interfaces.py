"""What the engine needs of a grammar library: to compile in the background, and a state that follows the answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from enginebay.messages import StructuredOutput

__all__ = ["GrammarCompiler", "GrammarFailed", "GrammarRejected", "GrammarState", "GrammarUnavailable"]


class GrammarFailed(Exception):
    """A grammar cannot be used, and never will: the message is one line that says why and what to do.

    ``param`` is the request's field at fault.
    """

    def __init__(self, message: str, *, param: str = "structured") -> None:
        super().__init__(message)
        self.param = param


class GrammarUnavailable(GrammarFailed):
    """No grammar can be compiled now, whatever it is: the compiler itself is at fault. It may be asked again."""


class GrammarRejected(Exception):
    """A request cannot go on under its grammar: the message is one line that says why."""


class GrammarState(Protocol):
    """Where an answer stands in its grammar: a function of the tokens that it was given."""

    def copy(self) -> GrammarState:
        """The same state, which goes its own way; it must be cheap. What bounds the work may bound both together."""

    def accept(self, token_ids: Sequence[int]) -> int:
        """Go on by as many of these tokens, none of them eos, as the grammar allows; returns how many."""

    def mask(self) -> bytes:
        """What may come next, packed, 32 token ids a word: eos is in it where the answer may end. Bounded work."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""

    @property
    def error(self) -> str:
        """Why it cannot go on, or "": asked after each call."""


class GrammarCompiler(Protocol):
    """Compiles within limits on time, memory, size and depth, and not in the caller's thread."""

    def compile(self, structured: StructuredOutput) -> Future[GrammarState]:
        """Begin to compile: the future's result is the state of an empty answer. It may be cancelled.

        Each call has a state, and limits, of its own: what one answer uses up is no other's.

        Its exception is ``GrammarFailed`` when the grammar is at fault, else ``GrammarUnavailable``.
        """

    def close(self) -> None:
        """Give everything back; what is being compiled fails. Idempotent."""

"""What an engine loop is sent beside control, and where the outputs of a request go."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from enginebay.engine.admission.admit import Ask
from enginebay.engine.moving import Moved
from enginebay.engine.parts import EngineStats
from enginebay.errors import EnginebayError
from enginebay.messages import RequestOutput

__all__ = ["Abort", "Add", "AddMany", "Enter", "ReadStats", "Sink", "Stop"]


class Sink(Protocol):
    """Where the outputs of one request go, those of all its choices.

    Called in the loop's thread; must return at once and raise nothing.
    """

    def put(self, output: RequestOutput) -> None:
        """A delta; the last one of each choice has a ``finish_reason``."""

    def fail(self, error: EnginebayError) -> None:
        """The engine has died or refused the request: nothing more comes. The error is this sink's own."""


@dataclass(frozen=True, kw_only=True)
class Add:
    """Admit a request that was validated."""

    ask: Ask
    sink: Sink
    operation: str


@dataclass(frozen=True, kw_only=True)
class AddMany:
    """Admit several requests, in this order and all between the same two steps; one that is refused fails alone."""

    adds: tuple[Add, ...]


@dataclass(frozen=True, kw_only=True)
class Abort:
    """End the request that was added with this sink, if it has not ended: its id may be another's by now."""

    request_id: str
    sink: Sink


@dataclass(frozen=True, kw_only=True)
class Enter:
    """Go on with a request of another group, whose outputs go to ``sink`` from here on.

    ``refused`` finds another group when this one cannot, and says whether there is one. Whoever makes ``taken`` run, or
    cancels it, is the one who has the request. ``is_aborted``: its abort was there before it. ``is_home``: it comes
    back to where it was, since nobody else can go on with it.
    """

    moved: Moved
    sink: Sink
    refused: Callable[[], bool]
    is_aborted: Callable[[], bool]
    is_home: bool = False
    taken: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, kw_only=True)
class ReadStats:
    """Say how the engine stands."""

    answer: Future[EngineStats] = field(default_factory=Future)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End everything, and the loop."""

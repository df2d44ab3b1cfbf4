"""Status sinks: where the engine writes how its workers stand. A projection: the engine's own state decides.

A sink keeps one record per slot, that of its present incarnation, with a tag that changes at each write (a row's
version, an ETag, a resourceVersion). It may keep more, such as a history. One thread of the engine calls it, one call
at a time, and waits no longer than the sink takes: give your client a timeout. What a sink raises is told in the log
and by ``enginebay status``, and tried again later; nothing waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from enginebay.interfaces._options import Options
from enginebay.messages import Slot, StatusRecord

O = TypeVar("O", bound=Options)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A record as a sink holds it; ``tag`` is the sink's word for this very content."""

    record: StatusRecord
    tag: str


class StatusConflict(Exception):  # an answer, and no error of anybody's
    """The slot does not hold what the writer has seen there; ``held`` is what it holds, None: nothing."""

    def __init__(self, held: Stored | None) -> None:
        super().__init__("the slot holds nothing" if held is None else f"the slot holds tag {held.tag}")
        self.held = held


@dataclass(frozen=True, kw_only=True)
class StatusSinkContext(Generic[O]):
    """Everything a sink is given. Frozen; a later minor version may add fields.

    ``engine`` names this engine's run; ``wall`` is the time of day in seconds.
    """

    options: O
    engine: str
    wall: Callable[[], float]


class StatusSink(ABC, Generic[O]):
    """See the module."""

    def __init__(self, context: StatusSinkContext[O]) -> None:
        self.context = context

    @abstractmethod
    def read(self, slot: Slot) -> Stored | None:
        """What the slot holds; None: nothing."""

    @abstractmethod
    def write(self, record: StatusRecord, seen: str) -> str:
        """Put the record into its slot, in one step with the look whether that still holds the tag ``seen`` ("":
        nothing); returns the new tag. Raises ``StatusConflict`` where it does not, and has then written nothing."""

    @abstractmethod
    def remove(self, slot: Slot, incarnation_id: str) -> None:
        """Empty the slot if it holds that incarnation; else nothing happens."""

    @abstractmethod
    def records(self) -> list[Stored]:
        """What all slots of this engine hold."""

    def close(self) -> None:
        """No call follows."""

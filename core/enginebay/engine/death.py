"""The engine's one root cause, kept as words: every client gets an error of its own, and none shares a traceback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginebay.engine.recovery import NoMoreStarts
from enginebay.errors import (
    EnginebayError,
    EngineDead,
    PolicyFailed,
    StartFailed,
    WorkerHung,
    WorkerLost,
    in_words,
    is_interrupt,
    said,
)

__all__ = ["Death", "OrDie"]

_WITH_OWN_EXIT: Final[dict[type[EnginebayError], type[EnginebayError]]] = {
    WorkerLost: WorkerLost,
    WorkerHung: WorkerHung,
    NoMoreStarts: StartFailed,
}


@dataclass(frozen=True, kw_only=True)
class Death:
    """Why the engine stopped, and as which class clients are told."""

    kind: type[EnginebayError]
    message: str

    @classmethod
    def of(cls, error: Exception) -> Death:
        """The death that ``error`` is the cause of; classes with an exit code of their own keep it."""
        for one, own in _WITH_OWN_EXIT.items():
            if isinstance(error, one):
                return cls(kind=own, message=f"the engine stopped: {said(error)}")
        if isinstance(error, EngineDead):
            kind: type[EnginebayError] = PolicyFailed if isinstance(error, PolicyFailed) else EngineDead
            return cls(kind=kind, message=said(error))
        what = said(error) if isinstance(error, EnginebayError) else in_words(error)
        return cls(kind=EngineDead, message=f"the engine stopped: {what}")

    @classmethod
    def closed(cls) -> Death:
        """The end that the user asked for."""
        return cls(kind=EngineDead, message="the engine is closed; make a new one")

    def error(self) -> EnginebayError:
        """A fresh exception: it carries no traceback, cause or context of another one."""
        return self.kind(self.message)


class OrDie:
    """A guard around a stranger's code: what it raises, but for what is spared and Ctrl-C, ends the engine.

    A class, since a generator's cost is felt in every step; one serves all blocks, also within each other.
    """

    __slots__ = ("_die", "_spare")

    def __init__(
        self, die: Callable[[Exception], EnginebayError], spare: type[EnginebayError] | tuple[()] = ()
    ) -> None:
        self._die = die
        self._spare = spare

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, self._spare) or is_interrupt(error):
            return
        cause = error if isinstance(error, Exception) else EngineDead(f"the engine stopped: {in_words(error)}")
        raise self._die(cause) from None

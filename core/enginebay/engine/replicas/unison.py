"""Whether the groups of an engine are alike: what changes one of them changes all, or requests are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from enginebay.engine.control.controls import QUIET
from enginebay.engine.control.tensors import AbortTensors, Command, FinishTensors, RestartFrom
from enginebay.engine.replicas.gathering import ControlInTurn
from enginebay.errors import EngineAsleep, EngineBusy
from enginebay.messages import ControlDone, ReadStatus, RestartWorkers, Scale, Swap, UpdateWeights
from enginebay.runtime import Runtime

__all__ = ["CHANGES", "Unison"]

CHANGES = (Swap, Scale, RestartWorkers, RestartFrom)
"""What puts other parts in the place of those that run: one at a time, and nothing else beside it."""

_WEIGHTS = (UpdateWeights, FinishTensors)
"""After one of these that only some groups did, two answers to one prompt would be of different weights."""


class Unison:
    """Keeps a new group's start and changes of those that run apart, and remembers a change that was not made by all.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_changing = 0
        self._num_growing = 0
        self._at_odds = ""
        self._change_of = ""

    def check(self) -> None:
        """Raise when the groups have different weights."""
        if self._at_odds:
            raise EngineAsleep(
                f"the groups of the engine have different weights: {self._at_odds}; update the weights, and ask again"
            )

    @contextmanager
    def growing(self) -> Iterator[None]:
        """While a group starts: it has the weights of one that must keep them for so long."""
        self.check()
        with self._lock:
            if self._num_changing or self._change_of:
                raise EngineBusy(
                    "no group is started while the engine's weights or memory change: ask again in a while"
                )
            self._num_growing += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_growing -= 1

    def control(
        self,
        runtime: Runtime,
        command: Command,
        groups: Sequence[int],
        send: Callable[[int], Future[ControlDone]],
        num_groups: int = 0,
    ) -> Future[ControlDone]:
        """``ControlInTurn``. Of ``num_groups``, those that are not asked are lost. Raises when it has to wait."""
        if isinstance(command, CHANGES):
            return self._change(runtime, command, groups, send)
        if not isinstance(command, QUIET) or isinstance(command, AbortTensors):
            at_odds = self._at_odds and isinstance(command, ReadStatus)
            facts = {"state": "groups of different weights"} if at_odds else None
            lost = [group for group in range(num_groups) if group not in groups]
            return ControlInTurn(runtime, command, groups, send, facts=facts, lost=lost)
        with self._lock:
            if self._num_growing:
                raise EngineBusy(f"{command.__struct_config__.tag} has to wait: another group is being started")
            self._check_unchanged(command)
            self._num_changing += 1

        def ended(error: BaseException | None, num_done: int) -> None:
            with self._lock:
                self._num_changing -= 1
                if isinstance(command, _WEIGHTS) and num_done:
                    self._at_odds = "" if error is None else str(error)

        return ControlInTurn(runtime, command, groups, send, ended)

    def _change(
        self, runtime: Runtime, command: Command, groups: Sequence[int], send: Callable[[int], Future[ControlDone]]
    ) -> Future[ControlDone]:
        """One of ``CHANGES``, beside nothing else that changes something."""
        with self._lock:
            self._check_unchanged(command)
            if self._num_growing or self._num_changing:
                raise EngineBusy(f"{_name(command)} has to wait: the engine is busy with something else; ask again")
            self._change_of = _name(command)

        def ended(error: BaseException | None, num_done: int) -> None:
            with self._lock:
                self._change_of = ""

        try:
            return ControlInTurn(runtime, command, groups, send, ended)
        except BaseException:
            ended(None, 0)
            raise

    def _check_unchanged(self, command: Command) -> None:
        if self._change_of:
            raise EngineBusy(f"{_name(command)} has to wait: the engine is busy with {self._change_of}; ask again")


def _name(command: Command) -> str:
    return str(command.__struct_config__.tag)

"""Other weights for a running group: all ranks or none, and the engine says when it has none any more."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.engine.control.tensors import AbortTensors, ChunkOfTensors, FinishTensors, StartTensors
from enginebay.engine.control.worker_calls import WorkerCalls
from enginebay.engine.life import WEIGHTS, Life
from enginebay.engine.parts import CoreParts
from enginebay.errors import CapabilityError, EngineAsleep, EnginebayError, EngineBusy, InvalidRequest
from enginebay.messages import (
    AbortWeightUpdate,
    Ack,
    ControlDone,
    FinishWeightUpdate,
    StartWeightUpdate,
    UpdateWeights,
)

__all__ = ["WeightsControl"]


class WeightsControl:
    """Start, chunks, finish, on every rank. Until the finish, the old weights serve.

    A finish that only some ranks survive leaves no weights that could serve: ``Life.void`` says so until others come.
    """

    def __init__(self, parts: CoreParts, calls: WorkerCalls, anew: Callable[[], None]) -> None:
        self._parts = parts
        self._life: Life = parts.life
        self._calls = calls
        self._anew = anew

    def from_path(self, command: UpdateWeights) -> ControlDone:
        """Read the weights of another folder; what was cached of the old ones is gone."""
        if not command.path:
            raise InvalidRequest("path is empty: name the folder of the new weights", param="path")
        self._check()
        self._read(command.path, command.version)
        return self._done(path=command.path, version=command.version, given=False)

    def reload(self) -> None:
        """Bring back, after a sleep that dropped them, the weights that were in force."""
        life = self._life
        if life.given:
            raise EngineAsleep(
                f"the weights that were in force{life.named} were given as tensors, and sleep dropped them: give them "
                "again by update_weights, which wakes them up as well"
            )
        self._read(life.path or self._parts.model_path, life.version)
        life.have_weights(path=life.path, version=life.version, given=False)

    def begin(self, command: StartTensors) -> ControlDone:
        """Chunks will come; until the end no request is taken."""
        self._check()
        self._start(StartWeightUpdate())
        self._life.updating = command.update
        return ControlDone()

    def chunk(self, command: ChunkOfTensors) -> ControlDone:
        """Hand one on. Whoever gives them aborts when this fails."""
        self._check_begun(command.update)
        self._calls.ask(command.chunk, Ack, ranks=command.ranks)
        return ControlDone()

    def finish(self, command: FinishTensors) -> ControlDone:
        """They count from here on."""
        self._check_begun(command.update)
        self._finish(command.version)
        self._life.updating = 0
        return self._done(path="", version=command.version, given=True)

    def abort(self, command: AbortTensors) -> ControlDone:
        """Forget them; the old weights serve."""
        if self._life.updating == command.update:
            self._life.updating = 0
            self._calls.try_all(AbortWeightUpdate())
        return ControlDone()

    def _read(self, path: str, version: str) -> None:
        self._start(StartWeightUpdate(path=path))
        self._finish(version)

    def _start(self, call: StartWeightUpdate) -> None:
        try:
            self._calls.ask(call, Ack, timeout=self._parts.load_timeout)
        except EnginebayError:
            self._calls.try_all(AbortWeightUpdate())
            raise

    def _finish(self, version: str) -> None:
        try:
            failures = self._calls.try_all(FinishWeightUpdate(version=version), timeout=self._parts.load_timeout)
        except EnginebayError as error:
            self._life.void = f"it is not known on which ranks an update of them ended ({error})"
            raise
        failed = {rank: failure for rank, failure in enumerate(failures) if failure is not None}
        if not failed:
            return
        first, *others = failed.values()
        for other in others:
            first.add_note(str(other))
        if len(failed) < len(failures):
            self._life.void = f"an update ended on some ranks, and failed on rank {next(iter(failed))}"
        self._calls.try_all(AbortWeightUpdate())  # else those that failed would take no other one
        raise first

    def _done(self, *, path: str, version: str, given: bool) -> ControlDone:
        self._life.have_weights(path=path, version=version, given=given)
        self._anew()
        return ControlDone(facts={"state": self._life.words, "weights": version or path or "given"})

    def _check(self) -> None:
        if not self._parts.runner_capabilities.update_weights:
            raise CapabilityError(f"{self._parts.runner_name} does not take other weights: choose a runner that does")
        if WEIGHTS in self._life.missing and self._life.level == 1:
            raise EngineAsleep('the engine sleeps, and keeps its weights aside: wake_up with the tag "weights" first')

    def _check_begun(self, update: int) -> None:
        if self._life.updating != update:
            raise EngineBusy("this update of the weights was given up: give them all again")

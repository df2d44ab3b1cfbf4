"""What is asked of a running engine beside requests, carried out between two steps by the engine's thread.

What would not be safe is refused with a message, and changes nothing: sleep and other weights while requests run, a
wake-up without weights to wake, a method that no extension declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from enginebay.engine.control.tensors import (
    AbortTensors,
    ChunkOfTensors,
    Command,
    FinishTensors,
    RestartFrom,
    StartTensors,
)
from enginebay.engine.control.weights import WeightsControl
from enginebay.engine.control.worker_calls import WorkerCalls
from enginebay.engine.life import CACHE, WEIGHTS, Life
from enginebay.engine.parts import CoreParts
from enginebay.engine.swap.exchange import Exchange
from enginebay.errors import CapabilityError, EnginebayError, EngineBusy, InvalidRequest
from enginebay.messages import (
    Ack,
    CallExtension,
    CallWorkers,
    ControlDone,
    Drain,
    ExtensionAnswered,
    ProfileWritten,
    ReadStatus,
    ResetPrefixCache,
    RestartWorkers,
    Resume,
    Scale,
    Sleep,
    SleepWorker,
    StartProfile,
    StartWorkerProfile,
    StopEngine,
    StopProfile,
    StopWorkerProfile,
    Swap,
    UpdateWeights,
    WakeUp,
    WakeWorker,
)

__all__ = ["QUIET", "Controls"]

QUIET: Final = (Sleep, WakeUp, UpdateWeights, StartTensors, ChunkOfTensors, FinishTensors, AbortTensors)
"""Commands that wait until nothing is left to be told to the workers."""

_TAGS: Final = (WEIGHTS, CACHE)
_LONGEST_CALL: Final = 7 * 24 * 3600.0


class Controls:
    """Carries out commands, one at a time; those of ``QUIET`` come when no step is in flight.

    ``anew`` puts a fresh scheduler over an empty KV cache under the next generation; ``unfinished`` counts requests;
    ``exchange`` puts other parts in the place of those that run.
    """

    def __init__(
        self,
        parts: CoreParts,
        exchange: Exchange,
        *,
        anew: Callable[[], None],
        unfinished: Callable[[], int],
        status: Callable[[], ControlDone],
    ) -> None:
        self._parts = parts
        self._life: Life = parts.life
        self._calls = WorkerCalls(parts)
        self._weights = WeightsControl(parts, self._calls, anew)
        self._anew = anew
        self._unfinished = unfinished
        self._status = status
        self._exchange = exchange

    def do(self, command: Command) -> ControlDone:
        """Raises what the command is refused for, or what went wrong with it on a worker; the engine goes on."""
        match command:
            case Sleep():
                return self._sleep(command)
            case WakeUp():
                return self._wake_up(command)
            case UpdateWeights():
                self._check_idle("update_weights")
                return self._weights.from_path(command)
            case StartTensors():
                self._check_idle("update_weights")
                return self._weights.begin(command)
            case ChunkOfTensors():
                return self._weights.chunk(command)
            case FinishTensors():
                return self._weights.finish(command)
            case AbortTensors():
                return self._weights.abort(command)
            case ResetPrefixCache():
                self._parts.cache.reset()
                return ControlDone()
            case CallWorkers():
                return self._call_workers(command)
            case StartProfile():
                return self._start_profile(command)
            case StopProfile():
                written = self._calls.ask(StopWorkerProfile(), ProfileWritten)
                return ControlDone(values=tuple(one.path.encode() for one in written))
            case Resume():
                self._life.draining = False
                self._parts.roster.drain(False)
                return ControlDone()
            case Swap() | Scale():
                return self._exchange.swap(command)
            case RestartWorkers():
                return self._exchange.restart()
            case RestartFrom():
                return self._exchange.restart(command.lender)
            case ReadStatus():
                return self._status()
            case Drain() | StopEngine():
                raise AssertionError(f"{type(command).__name__} is the loop's own")

    def _sleep(self, command: Sleep) -> ControlDone:
        self._check_capability(self._parts.runner_capabilities.sleep, "does not sleep")
        if command.level not in (1, 2):
            raise InvalidRequest(f"level is 1 or 2, not {command.level!r:.40}", param="level")
        if self._life.missing:
            raise EngineBusy(f"the engine sleeps already (level {self._life.level}): wake it up first")
        if self._life.void:
            raise EngineBusy(f"the engine has no weights: {self._life.void}; update the weights first")
        self._check_idle("sleep")
        try:
            self._calls.ask(SleepWorker(level=command.level), Ack)
        except EnginebayError as error:
            self._undo_sleep(error)
            raise
        self._life.level, self._life.missing = command.level, frozenset(_TAGS)
        self._anew()
        return self._standing()

    def _undo_sleep(self, cause: EnginebayError) -> None:
        """Some ranks may sleep and others not: wake up all. Whatever does not wake is told by the next status."""
        failures = [failure for failure in self._calls.try_all(WakeWorker()) if failure is not None]
        if failures:
            self._life.void = f"sleep failed ({cause}), and so did waking up: {failures[0]}"
        self._anew()

    def _wake_up(self, command: WakeUp) -> ControlDone:
        unknown = [tag for tag in command.tags if tag not in _TAGS]
        if unknown:
            raise InvalidRequest(f"tags are of {', '.join(_TAGS)}, and not {unknown[0]!r:.40}", param="tags")
        self._check_not_updating("wake_up")
        wanted = frozenset(command.tags or _TAGS) & self._life.missing
        if WEIGHTS in wanted and self._life.level > 1:
            self._weights.reload()
            wanted -= {WEIGHTS}
        if wanted:
            self._calls.ask(WakeWorker(tags=tuple(sorted(wanted))), Ack)
            self._life.awake(wanted)
        return self._standing()

    def _call_workers(self, command: CallWorkers) -> ControlDone:
        name, _, method = command.method.partition(".")
        declared = self._parts.worker_methods
        if method not in declared.get(name, ()):
            known = ", ".join(f"{one}.{m}" for one, methods in declared.items() for m in methods)
            raise InvalidRequest(
                f"no worker extension that is loaded declares {command.method!r:.80}; declared: "
                + (known or "nothing, since [worker] extensions names none"),
                param="method",
            )
        count = self._parts.num_ranks
        payloads = command.per_rank if command.per_rank is not None else (command.payload,) * count
        if len(payloads) != count:
            raise InvalidRequest(f"per_rank has {len(payloads)} payloads for {count} ranks", param="per_rank")
        if command.timeout is not None and not 0 < command.timeout <= _LONGEST_CALL:  # which a nan is not, either
            raise InvalidRequest(
                f"timeout is more than 0 s and at most {_LONGEST_CALL:.0f} s, not {command.timeout:g} s",
                param="timeout",
            )
        calls = [CallExtension(method=command.method, payload=payload) for payload in payloads]
        answers = self._calls.ask_each(calls, ExtensionAnswered, timeout=command.timeout)
        return ControlDone(values=tuple(one.value for one in answers))

    def _start_profile(self, command: StartProfile) -> ControlDone:
        if not command.folder:
            raise InvalidRequest("folder is empty: name the folder that the profiles go to", param="folder")
        failures = self._calls.try_all(StartWorkerProfile(folder=command.folder))
        failed = [failure for failure in failures if failure is not None]
        if failed:
            if len(failed) < len(failures):  # those that record would go on for nobody
                self._calls.try_all(StopWorkerProfile())
            raise failed[0]
        return ControlDone()

    def _standing(self) -> ControlDone:
        return ControlDone(facts={"state": self._life.words})

    def _check_idle(self, what: str) -> None:
        self._check_not_updating(what)
        if count := self._unfinished():
            raise EngineBusy(
                f"{what} is not safe while requests run, and {count} {'is' if count == 1 else 'are'} unfinished: "
                "drain first, or abort them"
            )

    def _check_not_updating(self, what: str) -> None:
        if self._life.updating:
            raise EngineBusy(f"{what} has to wait: the engine is being given other weights")

    def _check_capability(self, has: bool, cannot: str) -> None:
        if not has:
            raise CapabilityError(f"{self._parts.runner_name} {cannot}: choose a runner that does")

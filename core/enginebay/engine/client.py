"""The client of a core in the same process: checks requests in the caller's thread, and hands them to the loop."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from enginebay.engine.admission.admit import AdmissionLimits, Ask, check_id, check_size, validate
from enginebay.engine.collector import Tracked, TrackedRequests, stats_of
from enginebay.engine.control.tensors import Command
from enginebay.engine.core import EngineCore
from enginebay.engine.death import Death
from enginebay.engine.loop import Abort, Add, AddMany, Do, EngineLoop, Enter, ReadStats, Sink, Stop
from enginebay.engine.parts import EngineStats
from enginebay.engine.port import patience
from enginebay.engine.spans import TEXT_COMPLETION
from enginebay.errors import EnginebayError, EngineDead, PluginBroken, UnknownRequest, WorkerHung
from enginebay.messages import ControlDone, ReadStatus, SamplingParams

__all__ = ["InProcessClient"]

_UNWIND_SECONDS = 1.0
"""How long the loop's thread may take to tell everybody and end, once its workers were cut off."""


class InProcessClient:
    """Talks to one core through its loop. Thread-safe; every error is the caller's own."""

    def __init__(
        self,
        core: EngineCore,
        *,
        stop_timeout: float,
        step_timeout: float = 300.0,
        on_end: Callable[[], None] = lambda: None,
        on_request_end: Callable[[str], None] = lambda request_id: None,
    ) -> None:
        """Assigns. The timeouts are seconds; ``on_end`` is called in the engine's thread when all of it has ended.

        ``on_request_end`` is told the id of each request that was taken and has ended, when the id is free again.
        """
        self._core = core
        self._loop = EngineLoop(core)
        self._stop_timeout = stop_timeout
        self._step_timeout = step_timeout
        self._on_end = on_end
        self._on_request_end = on_request_end
        self._lock = threading.RLock()
        self._live = TrackedRequests()
        self._stop_deadline: float | None = None
        self._pid = os.getpid()
        self._thread_id: int | None = None

    def start(self) -> None:
        """Start the loop in its thread. It owns the core from here on, also when the start fails."""
        atexit.register(self.stop)
        try:
            self._loop.start(self._run)
        except BaseException:
            atexit.unregister(self.stop)
            self._core.stop()
            raise

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        try:
            self._loop.run()
        finally:
            atexit.unregister(self.stop)
            self._on_end()

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child: the engine's threads and workers are its parent's."""
        return os.getpid() == self._pid

    def check_alive(self) -> None:
        """Raise the engine's end when nobody is there to answer, or may be: whoever asks here is about to wait."""
        self.check_apart()
        self.check_there()

    def check_apart(self) -> None:
        """Raise ``PluginBroken`` in the engine's own thread, in which it calls its plugins."""
        if threading.get_ident() == self._thread_id:
            raise PluginBroken(
                "a plugin, called in the engine's own thread, asks the engine for something: it would wait for itself; "
                "ask from another thread"
            )

    def check_there(self) -> None:
        """Raise the engine's end when it has ended: for what needs no answer."""
        if not self.is_of_this_process:
            raise EngineDead(
                f"the engine runs in process {self._pid}, and this process was forked from it, which takes none of "
                "its threads along: make an engine here, or fork before the first is made"
            )
        if not self.is_alive():
            raise self._core.death() or EngineDead("the engine stopped: its thread has ended")

    @property
    def limits(self) -> AdmissionLimits:
        """What a request is checked against."""
        return self._core.limits

    def death(self) -> EnginebayError | None:
        """The engine's end with its cause, an error of the caller's own; None while it lives."""
        return self._core.death()

    def is_alive(self) -> bool:
        """Whether the engine takes requests: its thread runs, and nothing has ended it."""
        return self._loop.is_alive() and self._core.death() is None

    def is_live(self, request_id: str) -> bool:
        """Whether an unfinished request has this id."""
        return request_id in self._live

    def validate(self, ask: Ask) -> Ask:
        """The request in plain values, or what is wrong with it, in the caller's thread; nothing is sent."""
        return validate(ask, self._core.limits)

    def check_size(self, texts: Iterable[str], params: SamplingParams | None) -> None:
        """Raise ``RequestTooLong`` for text that is not worth tokenizing."""
        check_size(texts, params, self._core.limits)

    def add_request(self, ask: Ask, sink: Sink, *, operation: str = TEXT_COMPLETION, validated: bool = False) -> None:
        """Send a request; its outputs go to ``sink``. Raises what is wrong with it, or the engine's end."""
        self.add_requests([(ask, sink)], operation=operation, validated=validated)

    def add_requests(
        self, asks: Sequence[tuple[Ask, Sink]], *, operation: str = TEXT_COMPLETION, validated: bool = False
    ) -> None:
        """Send several as one: no step sees some of them and not the others. None is sent when one is refused here."""
        if not validated:
            asks = [(self.validate(ask), sink) for ask, sink in asks]
        self.check_alive()
        tracked = self._live.open(asks, self._forget)
        adds = tuple(Add(ask=ask, sink=one, operation=operation) for (ask, _), one in zip(asks, tracked, strict=True))
        try:
            self._loop.send(AddMany(adds=adds))
        except EnginebayError:
            for one in tracked:
                self._forget(one)
            raise
        except BaseException:  # interrupted: they may have been sent already, and their ends then free the ids
            with contextlib.suppress(EnginebayError):
                for one in tracked:
                    self._loop.send(Abort(request_id=one.request_id, sink=one))
            raise

    def abort(self, request_id: str) -> None:
        """End a request of this client; its last output has the finish reason "abort".

        Raises ``UnknownRequest`` for an id that no unfinished request has.
        """
        check_id(request_id)
        self.check_there()  # before any lock: in a forked child its owner may be a thread that is not there
        tracked = self._live.get(request_id)
        if tracked is None:
            raise UnknownRequest(f"no unfinished request has the id {request_id!r}", param="request_id")
        self._loop.send(Abort(request_id=request_id, sink=tracked))

    def abort_quietly(self, request_id: str, sink: Sink) -> None:
        """End the request of this id whose outputs go to ``sink``, if there is one: another's is left alone.

        It may have ended by now, or been refused, and the engine may have ended too.
        """
        try:
            self.check_there()  # before any lock, as in ``abort``
            tracked = self._live.get(request_id)
            if tracked is not None and tracked.sink is sink:
                self._loop.send(Abort(request_id=request_id, sink=tracked))
        except EnginebayError:
            return

    def stats(self) -> EngineStats:
        """How the engine stands; waits for a step that runs. Raises the engine's end, or ``WorkerHung``."""
        return stats_of(self, self._core.runtime)

    def ask_stats(self) -> Future[EngineStats]:
        """The same without waiting. Whoever waits calls ``check_patience`` every ``LOOK_SECONDS``; do not cancel it."""
        self.check_alive()
        command = ReadStats()
        self._loop.send(command)
        return command.answer

    def check_patience(self, answer: Future[EngineStats], asked: float) -> None:
        """Raise when an answer that was asked for at ``asked``, in seconds of the engine's clock, will not come."""
        if answer.done():
            return
        self.check_alive()
        seconds = patience(self._step_timeout, self._stop_timeout)
        if self._core.runtime.clock.now() - asked > seconds:
            raise WorkerHung(
                f"the engine has not said how it stands for {seconds:g} s: a step, or the scheduler, does not come to "
                "its end ([deadlines] step)"
            )

    def control(self, command: Command) -> Future[ControlDone]:
        """Ask for something beside requests. The future has the answer, or an error of its own.

        It is carried out between two steps, by the deadlines of the config; ``ReadStatus`` is answered at once.
        """
        asked = Do(command=command)
        if isinstance(command, ReadStatus):
            self.check_there()
            asked.answer.set_result(self._core.status())
        else:
            self.check_alive()
            self._loop.send(asked)
        return asked.answer

    @property
    def now(self) -> float:
        """Seconds of the engine's clock."""
        return self._core.runtime.clock.now()

    def _forget(self, tracked: Tracked) -> None:
        """The request has ended; its id is free."""
        if self._live.remove(tracked):
            self._on_request_end(tracked.request_id)

    def tracked(self, request_id: str) -> Tracked | None:
        """The unfinished request of this id, for a group that is to go on with it."""
        return self._live.get(request_id)

    @property
    def loop(self) -> EngineLoop:
        """For whoever is in its thread."""
        return self._loop

    def know(self, tracked: Tracked) -> None:
        """A request of another client is about to come."""
        tracked.on_end = self._forget
        self._live.add(tracked)

    def take_over(self, enter: Enter) -> bool:
        """Go on with it; False when the engine's loop has ended, and has not seen it."""
        try:
            self._loop.send(enter)
        except EnginebayError:
            return not enter.taken.cancel()
        return True

    def let_go(self, tracked: Tracked) -> None:
        """Another client has this request."""
        self._live.remove(tracked)

    def abort_tracked(self, tracked: Tracked) -> None:
        """End a request that another client had; it may have ended by now, and so may the engine."""
        with contextlib.suppress(EnginebayError):
            self._loop.send(Abort(request_id=tracked.request_id, sink=tracked))

    def ask_to_stop(self) -> None:
        """Tell the engine to end itself when its step has ended, and wait for nothing: from any thread, at any time.

        This is what the garbage collector may call, in whatever thread and in the middle of whatever.
        """
        if self.is_of_this_process:
            with contextlib.suppress(EnginebayError):  # the loop may have ended by itself
                self._loop.send(Stop())

    def begin_stop(self, deadline: float) -> float:
        """Ask for the end by ``deadline``, in seconds of the engine's clock, and wait for nothing.

        Returns the deadline that counts, which is the first one given.
        """
        with self._lock:
            if self._stop_deadline is None:
                self._stop_deadline = deadline
                self._core.stop_by(deadline)
            deadline = self._stop_deadline
        self.ask_to_stop()
        return deadline

    def stop(self) -> None:
        """End the engine and its thread, by one deadline for all of it, also when a worker hangs; idempotent.

        In the engine's own thread, which cannot wait for itself, it only asks. In a forked child it does nothing.
        """
        if not self.is_of_this_process:
            return
        clock = self._core.runtime.clock
        deadline = self.begin_stop(clock.now() + self._stop_timeout)
        if threading.get_ident() == self._thread_id:
            return
        if not self._loop.join(max(0.0, deadline - clock.now())):
            self._core.cut()
            if not self._loop.join(_UNWIND_SECONDS):  # a plugin has not come back from a call
                self._abandon()

    def _abandon(self) -> None:
        """Tell everybody who waits, since the loop's thread does not come to it."""
        self._loop.abandon()
        for tracked in self._live.all():  # unknown to the loop, which was not done with their commands
            tracked.fail(Death.closed().error())

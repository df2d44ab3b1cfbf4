"""What a front end needs of an engine, whether it runs in this process, in several groups, or behind a socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from enginebay.config import DeadlinesConfig
from enginebay.engine.admission.admit import AdmissionLimits, Ask
from enginebay.engine.control.tensors import Command
from enginebay.engine.loop import Sink
from enginebay.engine.parts import EngineStats
from enginebay.messages import ControlDone, SamplingParams

__all__ = ["EnginePort", "change_patience", "command_patience", "patience"]

_PHASES: Final = 6
"""Calls of a start, each of which may take ``[deadlines] load_model``."""


def patience(step_timeout: float, stop_timeout: float) -> float:
    """Seconds after which a question will not be answered: a step is two calls at most, and then it may stop."""
    return 2 * step_timeout + stop_timeout


def command_patience(deadlines: DeadlinesConfig, groups: int) -> float:
    """Seconds after which a command without a timeout of its own will not be answered.

    The longest are a drain, and an update of the weights: two calls that may load, and two more that take it back. One
    group does it after the other.
    """
    longest = max(deadlines.drain, 2 * deadlines.load_model + 2 * deadlines.call)
    return patience(deadlines.step, deadlines.stop) + deadlines.recovery + groups * longest


def change_patience(deadlines: DeadlinesConfig, groups: int) -> float:
    """Seconds after which a command that starts workers anew will not be answered: in each group two starts, the new
    workers' and, if that fails, the old ones', and what is before each of them."""
    start = deadlines.stop + deadlines.recovery + deadlines.start + _PHASES * deadlines.load_model
    return patience(deadlines.step, deadlines.stop) + groups * 2 * start


class EnginePort(Protocol):
    """One engine as its clients see it. Thread-safe; every error is the caller's own.

    Sinks are called in a thread of the port's and must return at once. In a forked child nothing of it works, and
    ``is_of_this_process`` says so.
    """

    @property
    def is_of_this_process(self) -> bool: ...

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock in which deadlines are given."""

    @property
    def in_force(self) -> dict[str, str]:
        """What is in force; of an engine in another process, what was when the connection was made."""

    @property
    def limits(self) -> AdmissionLimits:
        """What requests are checked against."""

    def check_alive(self) -> None:
        """Raise the engine's end when nobody is there to answer."""

    def validate(self, ask: Ask) -> Ask:
        """The request in plain values, or what is wrong with it; nothing is sent."""

    def check_size(self, texts: Iterable[str], params: SamplingParams | None) -> None:
        """Raise ``RequestTooLong`` for text that is not worth tokenizing."""

    def add_request(self, ask: Ask, sink: Sink, *, operation: str = ..., validated: bool = False) -> None:
        """Send a request; its outputs go to ``sink``. Raises what is wrong with it, or the engine's end."""

    def add_requests(self, asks: Sequence[tuple[Ask, Sink]], *, operation: str = ..., validated: bool = False) -> None:
        """Send several as one: no step sees some of them and not the others, in one group."""

    def abort(self, request_id: str) -> None:
        """End a request of this client. Raises ``UnknownRequest``."""

    def abort_quietly(self, request_id: str, sink: Sink) -> None:
        """End the request of this id whose outputs go to ``sink``, if there is one."""

    def stats(self) -> EngineStats:
        """How the engine stands; waits for a step that runs."""

    def ask_stats(self) -> Future[EngineStats]:
        """The same without waiting; whoever waits calls ``check_patience`` every ``LOOK_SECONDS``."""

    def check_patience(self, answer: Future[EngineStats], asked: float) -> None:
        """Raise when an answer that was asked for at ``asked`` will not come."""

    def control(self, command: Command) -> Future[ControlDone]:
        """Ask for something beside requests. The future has the answer, or an error of its own.

        What is no ``Control`` (weights as tensors) is for engines of this process alone: others refuse it.
        """

    def ask_to_stop(self) -> None:
        """Ask for the end and wait for nothing. For an engine in another process: leave it, and let it run."""

    def stop(self) -> None:
        """End the engine (or leave it, when it is not ours), by one deadline for all of it; idempotent."""

"""Clock, waits, entropy, processes and channels: the only door to time, threads, randomness and the operating system.

Engine, scheduling, kvcache and status are given a ``Runtime`` and touch none of these by other means, so that a
simulation can drive the whole core from one seed. ``system_runtime()`` is the real one.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from enginebay._processes import Parent, SystemProcess, pid_space, start_process

__all__ = [
    "Channel",
    "ChannelClosed",
    "Clock",
    "Entropy",
    "Process",
    "Runtime",
    "Spawner",
    "Thread",
    "Transport",
    "pid_space",
    "system_runtime",
]

T = TypeVar("T")


class Clock(ABC):
    """Monotonic time, and waits that a fake clock can shorten."""

    @abstractmethod
    def now(self) -> float:
        """Seconds, monotonic, from an arbitrary start."""

    @abstractmethod
    def now_ns(self) -> int:
        """The same in nanoseconds."""

    @abstractmethod
    def wall_ns(self) -> int:
        """Nanoseconds since 1970, for what people read; never for deadlines."""

    @abstractmethod
    def wait_future(self, future: Future[T], deadline: float | None) -> T:
        """The future's result; raises ``TimeoutError`` when ``deadline`` (seconds of ``now``) passes first."""

    def thread_time(self) -> float:
        """Seconds that the calling thread has computed: what others do on the machine is not in it."""
        return self.now()

    def event(self) -> Future[None]:
        """Something to wait for, that any thread may set; a clock that one thread drives can make a cheaper one."""
        return Future()


class ChannelClosed(ConnectionError):
    """The other end of a channel is gone."""


class Channel(ABC):
    """One end of a two-way line for frames of bytes, in order, between two parts of the engine."""

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Send one frame; raises ``ChannelClosed`` when either end is closed. Thread-safe."""

    @abstractmethod
    def receive(self, deadline: float | None) -> bytes | None:
        """The next frame; None once the line is closed and empty; ``TimeoutError`` past ``deadline``."""

    @abstractmethod
    def close(self) -> None:
        """Close both directions and wake whoever waits. Idempotent."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether either end has closed the line."""


class Transport(ABC):
    """Makes lines between parts of one process; processes have transports of their own."""

    @abstractmethod
    def pair(self, name: str) -> tuple[Channel, Channel]:
        """Both ends of a new line; ``name`` is for messages and for the simulation's log."""


class Process(Protocol):
    """A child process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises ``TimeoutError``."""

    def kill(self) -> None:
        """SIGKILL, harmless when it has ended."""

    def fileno(self) -> int:
        """A descriptor that is readable once the process has ended; -1: the system has none, or it was closed."""

    def close(self) -> None:
        """Give that descriptor back; the process is left alone. Idempotent."""


class Thread(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Spawner(ABC):
    """The only one that starts processes and threads."""

    @abstractmethod
    def process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> Process:
        """Start a child by argument list, never through a shell."""

    def worker(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = (), output: int
    ) -> Process:
        """Start a child that may ask to die with this process (PR_SET_PDEATHSIG): its parent thread outlives it.

        It is the first of a process group of its own; ``output`` is the descriptor of its stdout and stderr.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no workers")

    @abstractmethod
    def thread(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a daemon thread."""


class Entropy:
    """Named streams of random numbers, each independent of how much the others were used.

    With a seed, stream ``name`` is the same in every process and run; without one, it comes from the system.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def branch(self, name: str) -> Entropy:
        """Streams of another part of the engine, independent of these and of those of every other branch."""
        return Entropy(None if self._seed is None else self.stream(f"branch {name}").getrandbits(63))

    def stream(self, name: str) -> random.Random:
        """The stream of that name; the same object at each call."""
        if name not in self._streams:
            if self._seed is None:
                self._streams[name] = random.SystemRandom()
            else:
                digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
                self._streams[name] = random.Random(int.from_bytes(digest[:16], "little"))  # noqa: S311  # not for secrets
        return self._streams[name]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The seams together. Constructor argument of everything in the core that acts; never a default."""

    clock: Clock
    transport: Transport
    spawner: Spawner
    entropy: Entropy

    def wait(self, future: Future[T], deadline: float | None) -> T:
        """The future's result by ``deadline`` (monotonic seconds), else ``TimeoutError``."""
        return self.clock.wait_future(future, deadline)

    def lock(self) -> AbstractContextManager[object]:
        """A lock for what threads share, which whoever holds it may take again."""
        return threading.RLock()


class _SystemClock(Clock):
    def now(self) -> float:
        return time.monotonic()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def thread_time(self) -> float:
        return time.thread_time()

    def wait_future(self, future: Future[T], deadline: float | None) -> T:
        try:
            return future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            if future.done():  # the result itself is a TimeoutError
                raise
            raise TimeoutError("no answer before the deadline") from None


class _Line:
    """Shared state of both ends of a queue line."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.closed = False


class _QueueChannel(Channel):
    def __init__(self, line: _Line, inbox: deque[bytes], outbox: deque[bytes]) -> None:
        self._line, self._inbox, self._outbox = line, inbox, outbox

    def send(self, frame: bytes) -> None:
        with self._line.condition:
            if self._line.closed:
                raise ChannelClosed("the line is closed")
            self._outbox.append(frame)
            self._line.condition.notify_all()

    def receive(self, deadline: float | None) -> bytes | None:
        with self._line.condition:
            while not self._inbox:
                if self._line.closed:
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError("no frame before the deadline")
                self._line.condition.wait(left)
            return self._inbox.popleft()

    def close(self) -> None:
        with self._line.condition:
            self._line.closed = True
            self._line.condition.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._line.closed


class _QueueTransport(Transport):
    def pair(self, name: str) -> tuple[Channel, Channel]:
        line, there, back = _Line(), deque[bytes](), deque[bytes]()
        return _QueueChannel(line, back, there), _QueueChannel(line, there, back)


class _SystemSpawner(Spawner):
    def __init__(self) -> None:
        self._parent = Parent()

    def process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> Process:
        return SystemProcess(start_process(argv, env, pass_fds, None))

    def worker(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = (), output: int
    ) -> Process:
        return self._parent.start(argv, env, pass_fds, output)

    def thread(self, name: str, target: Callable[[], None]) -> Thread:
        thread = threading.Thread(name=name, target=target, daemon=True)
        thread.start()
        return thread


def system_runtime(seed: int | None = None) -> Runtime:
    """The real seams: the system's clock, threads and processes; entropy from ``seed``, or from the system."""
    return Runtime(clock=_SystemClock(), transport=_QueueTransport(), spawner=_SystemSpawner(), entropy=Entropy(seed))

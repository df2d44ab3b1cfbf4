"""One worker's process as its parent sees it: how it is started, what is known of it, how it is ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from enginebay.errors import ConfigError, StartFailed, WorkerFailed, one_line
from enginebay.interfaces import WorkerExit
from enginebay.messages import WorkerFailure, WorkerInfo
from enginebay.runtime import Process, Runtime
from enginebay.transport import failure_error
from enginebay.transport.unwrap import describe
from enginebay.worker.kernel import oom_kills
from enginebay.worker.process_start import MAX_FIRST_WORD, ProcessStart, Ready, decode_ready, encode_start
from enginebay_mp.descendants import MARK, end_marked
from enginebay_mp.logs import LogReader, Printer

__all__ = ["ARGV", "WorkerProcess"]

ARGV: Final = (sys.executable, "-P", "-m", "enginebay.worker.process")
_IN_WORDS: Final = 5
_IN_WORDS_LINE: Final = 150


class WorkerProcess:
    """Made by ``spawn``. All but ``kill`` and what is read belongs to the monitor's thread, once that runs."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        incarnation: str,
        mark: str,
        process: Process,
        ready: int,
        death: int,
        log: LogReader,
    ) -> None:
        self.rank, self.ranks, self.incarnation, self._mark = rank, ranks, incarnation, mark
        self.process, self.log = process, log
        self.ready, self._death = ready, death
        self.hello: WorkerInfo | None = None
        self.failure: WorkerFailure | None = None
        """What went wrong before HELLO, if the process said so itself."""
        self.exit_code: int | None = None
        self.killed = False
        """Whether it was us who killed it."""
        self.damage = ""
        """Why it was killed before anybody asked for its end."""
        self.left = False
        """Whether it ended in good order, by a ``Shutdown`` call."""
        self._word = bytearray()
        self._oom_before = oom_kills()

    @classmethod
    def spawn(
        cls,
        runtime: Runtime,
        printer: Printer,
        *,
        rank: int,
        ranks: int,
        incarnation: str,
        mark: str,
        payload: bytes,
        ticket: tuple[bytes, tuple[int, ...]],
        cpus: Sequence[int],
        environment: Mapping[str, str],
    ) -> WorkerProcess:
        """Start the process and return at once. Raises ``StartFailed``; nothing is then left of it."""
        ours: list[int] = []
        theirs: list[int] = []

        def pipe(ends: tuple[int, int], *, reads: bool) -> tuple[int, int]:
            ours.append(ends[0 if reads else 1])
            theirs.append(ends[1 if reads else 0])
            return ours[-1], theirs[-1]

        try:
            ready, their_ready = pipe(os.pipe(), reads=True)
            death, their_death = pipe(os.pipe(), reads=False)
            output, their_output = pipe(os.pipe(), reads=True)
            # a memfd and no pipe: it takes all of the message at once, whether the child reads or dies
            message = os.memfd_create("enginebay-start", os.MFD_CLOEXEC)
            theirs.append(message)
            descriptors = (their_ready, their_death, *ticket[1])
            start = ProcessStart(
                payload=payload,
                ticket=ticket[0],
                parent=os.getpid(),
                ready=their_ready,
                death=their_death,
                descriptors=descriptors,
                cpus=tuple(cpus),
                log_level=logging.getLogger("enginebay").getEffectiveLevel(),
                spawned_ns=runtime.clock.wall_ns(),
            )
            _fill(message, encode_start(start))
            process = runtime.spawner.worker(
                (*ARGV, str(message)),
                env={**os.environ, **environment, MARK: mark},
                pass_fds=(message, *descriptors),
                output=their_output,
            )
        except OSError as error:
            _close(ours)
            raise StartFailed(f"rank {rank} of {ranks}: its process could not be started: {error}") from error
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs)
        os.set_blocking(ready, False)
        log = LogReader(output, rank, printer, runtime.clock.now)
        return cls(rank, ranks, incarnation, mark, process, ready, death, log)

    @property
    def is_running(self) -> bool:
        """Whether its end has not been read yet."""
        return self.exit_code is None

    def hear(self) -> bool:
        """Read from the ready pipe; False when all was said."""
        while True:
            try:
                piece = os.read(self.ready, 1 << 16)
            except BlockingIOError:
                return True
            self._word += piece
            if len(self._word) > MAX_FIRST_WORD:
                self.kill("its first word has no end")
                return False
            if not piece:
                break
        if self._word:
            try:
                said = decode_ready(bytes(self._word))
            except ValueError as error:
                self.kill(str(error))
                return False
            if isinstance(said, Ready):
                self.hello = said.worker
            else:
                self.failure = msgspec.structs.replace(said, rank=self.rank)  # it may not have come to know its own
        return False

    def state(self) -> str:
        """ "running", "stopped" or "gone", as /proc says."""
        if self.exit_code is not None:
            return "gone"
        try:
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as file:
                letter = file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "gone"
        return {"T": "stopped", "Z": "gone", "X": "gone"}.get(letter, "running")

    def ask_for_stacks(self) -> None:
        """SIGUSR1, on which it writes its stacks."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGUSR1)

    def kill(self, damage: str = "") -> None:
        """SIGKILL to it and its process group, from any thread; also when it is stopped."""
        self.killed, self.damage = True, self.damage or damage
        self._kill_group()

    def reap(self) -> bool:
        """Read its end, if it has come, and end what it left in its group; whether it has ended."""
        if self.exit_code is None:
            if not _has_ended(self.process):
                return False
            self._kill_group()  # while it is not reaped, nobody else can have its number
            self.exit_code = self.process.poll()
        return self.exit_code is not None

    def end_descendants(self) -> None:
        """End what it started and what has left its group."""
        end_marked(self._mark)

    def close(self) -> None:
        """Give our ends of its pipes back."""
        _close([self.ready, self._death, self.log.descriptor])
        self.process.close()

    def how_it_ended(self) -> str:
        """``was killed (signal 9, SIGKILL)``, ``ended (exit code 1)``; with the reason, where that is known."""
        code = self.exit_code
        if code is None:
            return "is running"
        if self.damage:
            return f"was killed, because {self.damage}"
        if code >= 0:
            return f"ended (exit code {code})"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
        words = f"was killed (signal {-code}, {name})"
        if self.was_out_of_memory():
            words += ", out of memory: the kernel's count of such kills has risen"
        return words

    def was_out_of_memory(self) -> bool:
        """Whether it died of a SIGKILL that was not ours while the kernel killed somebody for want of memory."""
        return self.exit_code == -signal.SIGKILL and not self.killed and oom_kills() > self._oom_before

    def with_last_lines(self, text: str) -> str:
        """The text, and what the process printed last."""
        lines = [one_line(line, _IN_WORDS_LINE) for line in self.log.last_lines[-_IN_WORDS:]]
        return f"{text}; last log lines: {' | '.join(lines)}" if lines else text

    @property
    def named(self) -> str:
        """``rank 1 of 2: its process (pid 7)``."""
        return f"rank {self.rank} of {self.ranks}: its process (pid {self.process.pid})"

    def missing(self) -> str:
        """What is known of one that has not said HELLO."""
        text = f"rank {self.rank} of {self.ranks} did not say HELLO: its process (pid {self.process.pid})"
        return self.with_last_lines(f"{text} is {self.state()}")

    def start_error(self) -> Exception | None:
        """Why there will be no HELLO; None: it may still come. Whatever it was, it is the start that failed."""
        if self.failure is not None:
            error = failure_error(self.failure, shared=self.ranks == 1)
            if isinstance(error, (StartFailed, ConfigError)):
                return error
            return WorkerFailed(describe(self.failure), remote_traceback=self.failure.traceback)
        if self.is_running:
            return None
        return StartFailed(self.with_last_lines(f"{self.named} {self.how_it_ended()} before HELLO"))

    def as_exit(self) -> WorkerExit:
        """What the core is told of its end."""
        code = self.exit_code
        assert code is not None, "its end was read"
        return WorkerExit(
            rank=self.rank,
            incarnation=self.incarnation,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            last_log_lines=self.log.last_lines,
            reason=self.how_it_ended() if self.damage or self.was_out_of_memory() else "",
        )

    def as_failure(self, kind: str, message: str, phase: str) -> WorkerFailure:
        """What stands for its answers once it answers no more."""
        return WorkerFailure(
            phase=phase or "start",
            error_type=kind,
            message=message,
            kind=kind,
            rank=self.rank,
            host=socket.gethostname(),
            pid=self.process.pid,
            signal=-self.exit_code if self.exit_code is not None and self.exit_code < 0 else 0,
            last_log_lines=self.log.last_lines,
        )

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.exit_code is None:
                os.killpg(self.process.pid, signal.SIGKILL)


def _has_ended(process: Process) -> bool:
    """Whether it has ended; it stays a zombie, so that its number stays its own."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # somebody else in this process has reaped it


def _fill(memory: int, message: bytes) -> None:
    """Write without moving the offset, which the child shares."""
    view, at = memoryview(message), 0
    while at < len(view):
        at += os.pwrite(memory, view[at:], at)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

"""Child processes of the system: how they are started, waited for, and tied to the life of the one that starts them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

__all__ = ["Parent", "SystemProcess", "pid_space", "start_process"]

_Job = tuple[Callable[[], "subprocess.Popen[bytes]"], "Future[subprocess.Popen[bytes]]"]


def pid_space() -> str:
    """Where this process's pids mean what they mean: this boot of this host, and the pid namespace; "" when the system
    does not say so."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


class SystemProcess:
    """A child and its pidfd, where the system has such. ``on_reaped`` is called once, when its end has been read."""

    def __init__(self, popen: subprocess.Popen[bytes], on_reaped: Callable[[], None] = lambda: None) -> None:
        self._popen = popen
        self._on_reaped = on_reaped
        self._lock = threading.Lock()
        self._told = False
        self._pidfd = _pidfd(popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def fileno(self) -> int:
        return self._pidfd

    def poll(self) -> int | None:
        return self._ended(self._popen.poll())

    def wait(self, timeout: float | None = None) -> int:
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} is still running") from None
        self._ended(code)
        return code

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        with self._lock:
            pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)

    def _ended(self, code: int | None) -> int | None:
        if code is not None:
            with self._lock:
                told, self._told = self._told, True
            if not told:
                self._on_reaped()
        return code


class Parent:
    """The thread that starts children which must not outlive this process.

    Decision. A child asks the kernel for SIGKILL at its parent's death (PR_SET_PDEATHSIG), because a pipe that ends
    wakes nobody who is stopped. The kernel means the parent *thread*: it sends the signal when the thread that started
    the child ends. So one thread starts them all, and lives until the last of them has been reaped. The child asks for
    the signal itself, as the first thing that it does, and then compares its parent: a ``preexec_fn`` would run Python
    between fork and exec in a process with threads, and can lock up for good. What is left open is a child that is
    stopped within its first moments and whose parent dies before it goes on. It is in a process group of its own in
    its parent's session, and the kernel sends such a group, when it is orphaned and one of it is stopped, SIGHUP and
    SIGCONT. A violating change looks like: ``start_new_session``, a ``preexec_fn``, or starting a worker from a pool.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._children = 0

    def start(self, argv: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], output: int) -> SystemProcess:
        """A child in a process group of its own, with ``output`` as its stdout and stderr."""
        started: Future[subprocess.Popen[bytes]] = Future()
        with self._lock:
            self._children += 1
            if self._jobs is None:
                self._jobs = SimpleQueue()
                threading.Thread(name="enginebay-parent", target=_serve, args=(self._jobs,), daemon=True).start()
            self._jobs.put((lambda: start_process(argv, env, pass_fds, output, own_group=True), started))
        try:
            return SystemProcess(started.result(), self._release)
        except BaseException:  # Ctrl-C too: then the child may be there, or come, and belongs to nobody
            self._release()
            started.add_done_callback(_end_unwanted)
            raise

    def _release(self) -> None:
        with self._lock:
            self._children -= 1
            if not self._children and self._jobs is not None:
                self._jobs.put(None)
                self._jobs = None


def start_process(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    pass_fds: Sequence[int],
    output: int | None,
    *,
    own_group: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a child by argument list. It inherits ``pass_fds`` under the same numbers, and nothing else but these."""
    return subprocess.Popen(
        list(argv),
        env=None if env is None else dict(env),
        pass_fds=tuple(pass_fds),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0 if own_group else None,
    )


def _end_unwanted(started: Future[subprocess.Popen[bytes]]) -> None:
    if started.exception() is None:
        child = started.result()
        child.kill()
        child.wait()


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        start, started = job
        try:
            started.set_result(start())
        except BaseException as error:  # whoever asked is told, and the thread has to live on
            started.set_exception(error)
        del job, start, started  # a thread that waits holds nothing


def _pidfd(pid: int) -> int:
    """A descriptor that is readable once the process has ended; -1 where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel, or too many open files
        return -1

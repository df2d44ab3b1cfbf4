"""One child process and both pipes to it: frames with a deadline, and how it ended in words."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from typing import Any

from enginebay.limited._serve import HEAD, unpack

_LAST_MOMENT = 1.0
_PIECE = 1 << 20
_KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TZ", "VIRTUAL_ENV")  # what Python needs; no secrets
_MEMORY = (-signal.SIGKILL, -signal.SIGABRT)  # the kernel's killer; native code that got no memory


class Ended(Exception):
    """The child is gone, or says what makes no sense."""


class TooLong(Exception):
    """The child's answer is longer than is taken."""


class Child:
    """The process and both pipes."""

    def __init__(self, argv: list[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("PYTHON")}
        environment |= {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
        self.words = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        try:
            self.popen = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.words,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours alone
            )
        except BaseException:
            self.words.close()
            raise
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self._to, self._from = self.popen.stdin, self.popen.stdout
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)

    def send(self, frame: bytes, deadline: float) -> None:
        """Raises ``TimeoutError``. A child that does not take it all may have left an answer that says why."""
        view = memoryview(frame)
        while view:
            _wait(self._to.fileno(), select.POLLOUT, deadline)
            try:
                view = view[os.write(self._to.fileno(), view[:_PIECE]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def receive(self, deadline: float, most: int) -> dict[str, Any]:
        """One frame of at most ``most`` bytes. Raises ``TimeoutError``, ``TooLong``, or ``Ended``."""
        length = int.from_bytes(self._exactly(HEAD, deadline), "big")
        if length > most:
            raise TooLong
        try:
            answer = unpack(self._exactly(length, deadline))
        except (ValueError, RecursionError):
            raise Ended from None
        if not isinstance(answer, dict):
            raise Ended
        return answer

    def _exactly(self, count: int, deadline: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            _wait(self._from.fileno(), select.POLLIN, deadline)
            with contextlib.suppress(BlockingIOError):
                piece = os.read(self._from.fileno(), min(count - len(found), _PIECE))
                if not piece:
                    raise Ended
                found += piece
        return bytes(found)

    def epitaph(self) -> str:
        """How it ended, in words; it is given a moment to do so by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_LAST_MOMENT)
        code = self.popen.returncode
        if code is None:
            return "gave no answer that makes sense, and was stopped"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code in _MEMORY else "")
        self.words.seek(0)
        words = self.words.read(_PIECE).decode(errors="replace").strip().splitlines()
        return f"ended with code {code}" + (f": {words[-1]}" if words else "")

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait()
        self._close()

    def forget(self) -> None:
        """Give our copies of its pipes back; it is not ours to wait for."""
        self.popen.returncode = 0  # else its object would complain that it still runs
        self._close()

    def _close(self) -> None:
        for file in (self._to, self._from, self.words):
            with contextlib.suppress(OSError):
                file.close()


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError

"""A child process that answers calls within limits: started on the first one, used again, replaced when it dies."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from enginebay.limited._child import Child, Ended, TooLong
from enginebay.limited._serve import pack

_START_SECONDS = 60.0


class HelperFailed(Exception):
    """A call gave no answer; the message is the end of a sentence: "took longer than 5 s and was stopped"."""


class OverLimit(HelperFailed):
    """The call itself is why: it took more time or memory, or gave a longer answer, than it may."""


class Helper:
    """One child at most. Thread-safe: calls wait for each other. A forked process starts a child of its own.

    ``module`` is run with ``-P -m`` and calls ``serve``. ``memory`` is in bytes beyond what it has after its start,
    ``seconds`` is for one call, ``max_reply`` in bytes. The child ends with ``close``, with this object, and with this
    process, however that ends.
    """

    def __init__(self, module: str, *, memory: int, seconds: float, max_reply: int) -> None:
        self._module, self._memory, self._seconds, self._max_reply = module, memory, seconds, max_reply
        self._lock = threading.Lock()
        self._held = _Held()
        self._shut = False
        self._finalizer = weakref.finalize(self, self._held.end)
        _ALL.add(self)

    @property
    def pid(self) -> int | None:
        """The child's, while there is one."""
        return self._held.child.popen.pid if self._held.child is not None else None

    def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the child answers. Raises ``OverLimit``, and ``HelperFailed`` when the child is lost otherwise."""
        frame = pack(request)
        with self._lock:
            if self._shut:
                raise HelperFailed("could not be started: it was shut")
            if self._held.child is not None and self._held.child.popen.poll() is not None:
                self._held.end()  # it died while nobody asked
            child = self._held.child or self._start()
            try:
                child.send(frame, deadline := time.monotonic() + self._seconds)
                answer = child.receive(deadline, self._max_reply)
            except TimeoutError:
                self._held.end()
                raise OverLimit(f"took longer than {self._seconds:g} s and was stopped") from None
            except TooLong:
                self._held.end()
                raise OverLimit(f"gave an answer of more than {self._max_reply} bytes, and was stopped") from None
            except Ended:
                how = child.epitaph()
                self._held.end()
                raise HelperFailed(how) from None
            except BaseException:  # an interrupt: the answer to this call must not be taken for the next one's
                self._held.end()
                raise
            if answer.get("memory"):
                self._held.end()  # it is on its way out: what is left of it is in pieces
        if answer.get("memory"):
            raise OverLimit(f"needs more than the {self._memory >> 20} MiB that it may take")
        return answer

    def shut(self) -> None:
        """Kill the child for good, from any thread: a call that is under way fails at once, as each later one does."""
        self._shut = True  # before the look: whoever starts a child looks after it, so that one of both sees the other
        if (child := self._held.child) is not None:
            child.popen.kill()

    @property
    def is_shut(self) -> bool:
        """Whether no child will ever be started again."""
        return self._shut

    def close(self) -> None:
        """End the child; a later call starts another one."""
        with self._lock:
            self._held.end()

    def _start(self) -> Child:
        asked = {"parent": os.getpid(), "memory": self._memory, "seconds": self._seconds}
        try:
            child = self._held.child = Child([sys.executable, "-P", "-m", self._module, json.dumps(asked)])
        except OSError as error:
            raise HelperFailed(f"could not be started: {error.strerror}") from error
        if self._shut:  # meanwhile
            child.popen.kill()
        try:
            child.receive(time.monotonic() + _START_SECONDS, self._max_reply)
        except (TimeoutError, TooLong, Ended):
            how = child.epitaph()
            self._held.end()
            raise HelperFailed(f"could not be started: it {how}") from None
        except BaseException:
            self._held.end()
            raise
        return child

    def _forget(self) -> None:
        """In a forked process: the child is the other one's."""
        self._lock = threading.Lock()
        if self._held.child is not None:
            self._held.child.forget()
            self._held.child = None


class _Held:
    """What the finalizer may hold without holding the helper."""

    def __init__(self) -> None:
        self.child: Child | None = None

    def end(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            child.end()


_ALL: weakref.WeakSet[Helper] = weakref.WeakSet()


def _forget_all() -> None:
    for helper in list(_ALL):
        helper._forget()


os.register_at_fork(after_in_child=_forget_all)

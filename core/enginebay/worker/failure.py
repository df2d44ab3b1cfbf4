"""A failure as data: what an exception becomes before it crosses to the engine."""

from __future__ import annotations

import os
import socket
import traceback
from types import TracebackType
from typing import Final

from enginebay import errors
from enginebay.messages import WorkerFailure

MAX_MESSAGE: Final = 4096
MAX_TRACEBACK: Final = 65536


def describe_failure(error: BaseException, *, phase: str, rank: int) -> WorkerFailure:
    """Everything that can be told of the error; never raises, and always encodes, whatever the error is."""
    return WorkerFailure(
        phase=phase,
        error_type=type(error).__name__,
        message=_clean(_message(error), MAX_MESSAGE),
        traceback=_clean("".join(traceback.format_exception(error)), MAX_TRACEBACK, keep_end=True),
        kind=_kind(error),
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def _kind(error: BaseException) -> str:
    """The nearest class of ``enginebay.errors`` that the error is; a memory error of Python or torch counts as ours.

    ``WorkerFailed``, raised here, is for what came of another rank: a collective that a peer has left.
    """
    if _missed_a_peer(error):
        return errors.WorkerFailed.__name__
    for cls in type(error).__mro__:
        if cls.__module__ == errors.__name__ and cls.__name__ in errors.__all__:
            return cls.__name__
    out_of_memory = isinstance(error, MemoryError) or (
        type(error).__name__ == "OutOfMemoryError" and type(error).__module__.partition(".")[0] == "torch"
    )
    return "OutOfMemory" if out_of_memory else ""


def _missed_a_peer(error: BaseException) -> bool:
    """Whether this, or what it was raised from, is a ``RuntimeError`` out of ``torch.distributed``."""
    seen: list[BaseException] = []  # a chain that bites its tail ends too
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, RuntimeError) and _raised_in(cause.__traceback__).startswith("torch.distributed"):
            return True
        seen.append(cause)
        cause = cause.__cause__
    return False


def _raised_in(at: TracebackType | None) -> str:
    """The module of the innermost frame."""
    module = ""
    while at is not None:
        module, at = str(at.tb_frame.f_globals.get("__name__", "")), at.tb_next
    return module


def _message(error: BaseException) -> str:
    try:
        return str(error) or "no message"
    except Exception as second:  # an error whose __str__ is broken is still told of
        return f"(its message cannot be printed: {type(second).__name__})"


def _clean(text: str, limit: int, *, keep_end: bool = False) -> str:
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates do not encode
    if len(text) <= limit:
        return text
    return f"… {text[-limit:]}" if keep_end else f"{text[:limit]} …"

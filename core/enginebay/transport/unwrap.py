"""From replies to results: raises what a rank reported, as the error class that keeps the exit code right."""

from __future__ import annotations

from collections.abc import Iterable

from enginebay import errors
from enginebay.errors import EnginebayError, RequestError, WorkerFailed
from enginebay.messages import Replies, Result, WorkerFailure
from enginebay.transport.codec import decode_result


def unwrap(replies: Replies) -> list[object]:
    """The results in rank order; raises the failure of the lowest rank that failed, with the others as notes.

    Raises the class of ``enginebay.errors`` that the worker raised, if it was one, else ``WorkerFailed``.
    """
    results = results_of(replies)
    raise_failures(results)
    return list(results)


def results_of(replies: Replies) -> list[Result]:
    """The results in rank order with failures left in as data; nothing is raised for them."""
    return [decode_result(reply.payload) if reply.failure is None else reply.failure for reply in replies.replies]


def raise_failures(results: Iterable[object]) -> None:
    """Raise if any of the results is a ``WorkerFailure``."""
    failures = [result for result in results if isinstance(result, WorkerFailure)]
    if not failures:
        return
    error = failure_error(failures[0])
    for other in failures[1:]:
        error.add_note(describe(other))
    raise error


def failure_error(failure: WorkerFailure) -> EnginebayError:
    """The exception that stands for a failure; ``remote_traceback`` is set on it, whatever its class."""
    ours = getattr(errors, failure.kind, None) if failure.kind in errors.__all__ else None
    error: EnginebayError
    if (
        isinstance(ours, type)
        and issubclass(ours, EnginebayError)
        and not issubclass(ours, (WorkerFailed, RequestError))
    ):
        # our own error already says what, where and what to do: its message stands for itself
        error = ours(failure.message)
        error.__dict__["remote_traceback"] = failure.traceback
        error.add_note(f"on {_place(failure)}, in {failure.phase}")
    else:
        error = WorkerFailed(describe(failure), remote_traceback=failure.traceback)
    return error


def describe(failure: WorkerFailure) -> str:
    """``rank 0 (pid 7, host h) failed in load_model: ValueError: …``, with the signal and last log lines if known."""
    text = f"{_place(failure)} failed in {failure.phase}: {failure.error_type}: {failure.message}"
    if failure.signal:
        text += f" (signal {failure.signal})"
    if failure.last_log_lines:
        text += "; last log lines: " + " | ".join(failure.last_log_lines)
    return text


def _place(failure: WorkerFailure) -> str:
    known = [f"pid {failure.pid}"] if failure.pid else []
    known += [f"host {failure.host}"] if failure.host else []
    return f"rank {failure.rank}" + (f" ({', '.join(known)})" if known else "")

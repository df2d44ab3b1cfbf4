"""From replies to results: raises what the ranks reported, as the error class that keeps the exit code right.

Decision. A failure that every rank reports alike is no worker's own: the model is damaged for all of them, and the
error keeps its class (``ModelError``, exit code 2), as does that of a rank that answers alone. One that only some of
several ranks report is a worker's: ``WorkerFailed`` with rank, pid, host and phase, whatever was raised there. That a
worker was lost or is hung is the executor's own word, and keeps its class, on which recovery decides.
A rank that says ``WorkerFailed`` itself speaks of a peer that it missed: its failure follows from another's.
A violating change looks like: the class of the lowest rank's failure, when another rank's is what caused it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from enginebay import errors
from enginebay.errors import EnginebayError, EngineDead, RequestError, WorkerFailed, WorkerHung, WorkerLost
from enginebay.messages import Replies, Result, WorkerFailure
from enginebay.transport.codec import decode_result

_OF_THE_EXECUTOR: Final = {one.__name__: rank for rank, one in enumerate((WorkerLost, WorkerHung))}
_STOPPED: Final = EngineDead.__name__


def unwrap(replies: Replies) -> list[object]:
    """The results in rank order; raises the failure that is the cause of the others, with the others as notes.

    Raises the class of ``enginebay.errors`` that the workers raised, if it was one and all of them did, else
    ``WorkerFailed``.
    """
    results = results_of(replies)
    raise_failures(results)
    return list(results)


def results_of(replies: Replies) -> list[Result]:
    """The results in rank order with failures left in as data; nothing is raised for them."""
    return [decode_result(reply.payload) if reply.failure is None else reply.failure for reply in replies.replies]


def raise_failures(results: Iterable[object]) -> None:
    """Raise if any of the results, which are those of all the ranks that were asked, is a ``WorkerFailure``."""
    answers = list(results)
    failures = [answer for answer in answers if isinstance(answer, WorkerFailure)]
    if not failures:
        return
    first, *others = sorted(failures, key=_distance)  # stable: among equals, the lowest rank
    alike = len({(one.phase, one.kind, one.error_type, one.message) for one in failures}) == 1
    error = failure_error(first, shared=alike and len(failures) == len(answers))
    for other in others:
        error.add_note(describe(other))
    raise error


def failure_error(failure: WorkerFailure, *, shared: bool = True) -> EnginebayError:
    """The exception that stands for a failure; ``remote_traceback`` is set on it, whatever its class.

    ``shared``: no other rank has another answer, so that it may be an error of its own class.
    """
    ours = getattr(errors, failure.kind, None) if failure.kind in errors.__all__ else None
    own_word = failure.kind in _OF_THE_EXECUTOR or failure.kind == _STOPPED
    error: EnginebayError
    if (
        (shared or own_word)
        and isinstance(ours, type)
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


def _distance(failure: WorkerFailure) -> int:
    """How far a failure may be from the cause of all: a lost rank, a hung one, a failed one, one that missed a peer."""
    if failure.kind in _OF_THE_EXECUTOR:
        return _OF_THE_EXECUTOR[failure.kind]
    if failure.kind == _STOPPED:  # it was not waited for
        return len(_OF_THE_EXECUTOR) + 2
    return len(_OF_THE_EXECUTOR) + (failure.kind == WorkerFailed.__name__)


def _place(failure: WorkerFailure) -> str:
    known = [f"pid {failure.pid}"] if failure.pid else []
    known += [f"host {failure.host}"] if failure.host else []
    return f"rank {failure.rank}" + (f" ({', '.join(known)})" if known else "")

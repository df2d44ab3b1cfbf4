"""Calls on all ranks that are no steps: sent, waited for by a deadline, and each rank's answer looked at."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from enginebay.engine.parts import CoreParts
from enginebay.errors import EnginebayError, EngineDead, WorkerFailed, WorkerHung, in_words, is_interrupt
from enginebay.interfaces import PendingCall
from enginebay.messages import Call, Replies, Result, WorkerFailure
from enginebay.transport import failure_error, raise_failures, results_of

__all__ = ["WorkerCalls"]

T = TypeVar("T")


class WorkerCalls:
    """One group's workers, as those see them who ask for something beside a step."""

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._clock = parts.runtime.clock

    def ask(
        self, call: Call, expected: type[T], *, timeout: float | None = None, ranks: tuple[int, ...] | None = None
    ) -> list[T]:
        """Every rank's answer, in rank order.

        Raises the failure that the first rank reported, what befell a worker, or ``WorkerHung`` after ``timeout``
        seconds (``[deadlines] call`` unless it is given).
        """
        deadline = self._deadline(timeout)
        results = self._wait(call, self._send(call, deadline, ranks), deadline)
        raise_failures(results)
        return self._checked(call, results, expected)

    def ask_each(self, calls: Sequence[Call], expected: type[T], *, timeout: float | None = None) -> list[T]:
        """The same with a call of its own for each rank, sent to all of them before the first is waited for."""
        deadline = self._deadline(timeout)
        sent = [self._send(call, deadline, (rank,)) for rank, call in zip(self._ranks, calls, strict=True)]
        results = [self._wait(call, one, deadline) for call, one in zip(calls, sent, strict=True)]
        flat = [result for group in results for result in group]
        raise_failures(flat)
        return self._checked(calls[0], flat, expected)

    def try_all(self, call: Call, *, timeout: float | None = None) -> list[EnginebayError | None]:
        """Every rank's failure, in rank order; None for one that did it. Raises as ``ask`` does when one is lost."""
        deadline = self._deadline(timeout)
        results = self._wait(call, self._send(call, deadline, None), deadline)
        return [failure_error(result) if isinstance(result, WorkerFailure) else None for result in results]

    @property
    def _ranks(self) -> tuple[int, ...]:
        """Those that this engine speaks to: of several engines, each with one rank, its own."""
        count = self._parts.num_ranks
        return (self._parts.output_rank,) if count == 1 else tuple(range(count))

    def _deadline(self, timeout: float | None) -> float:
        return self._clock.now() + (self._parts.call_timeout if timeout is None else timeout)

    def _send(self, call: Call, deadline: float, ranks: tuple[int, ...] | None) -> PendingCall:
        try:
            sent: object = self._parts.executor.submit_call(call, deadline=deadline, ranks=ranks)
        except EnginebayError:
            raise
        except BaseException as error:
            raise self._failed(f"did not take {_name(call)}", error) from error
        if not isinstance(sent, PendingCall) or not isinstance(sent.future, Future):
            raise self._failed(f"took {_name(call)} without a Future of Replies")
        return sent

    def _wait(self, call: Call, sent: PendingCall, deadline: float) -> list[Result]:
        try:
            replies: object = self._parts.watch.wait(self._parts.runtime, sent.future, deadline)
        except TimeoutError:
            detail = self._parts.executor.health().detail
            raise WorkerHung(
                f"no answer to {_name(call)} by its deadline ([deadlines] call)" + (f"; {detail}" if detail else "")
            ) from None
        except EnginebayError:
            raise
        except BaseException as error:
            raise self._failed(f"failed {_name(call)}", error) from error
        if not isinstance(replies, Replies):
            raise self._failed(f"answered {_name(call)} with {type(replies).__name__}, and must answer with Replies")
        return results_of(replies)

    def _checked(self, call: Call, results: Sequence[Result], expected: type[T]) -> list[T]:
        typed: list[T] = [result for result in results if isinstance(result, expected)]
        if len(typed) != len(results) or not typed:
            kinds = ", ".join(type(result).__name__ for result in results)
            raise EngineDead(f"the workers answered {_name(call)} with {kinds or 'nothing'}, not {expected.__name__}")
        return typed

    def _failed(self, what: str, error: BaseException | None = None) -> WorkerFailed:
        if error is not None and is_interrupt(error):
            raise error
        return WorkerFailed(f"{self._parts.executor_name} {what}" + ("" if error is None else f": {in_words(error)}"))


def _name(call: Call) -> str:
    return str(call.__struct_config__.tag)

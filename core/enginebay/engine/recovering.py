"""The trace of a recovery: one for each, never sampled away, from the setback to the last request's new place.

``engine.recover`` is its root. What is done below it opens spans of its own in the same thread: ``worker.reclaim``,
``worker.back_off``, ``worker.respawn`` with the start of each new worker, and ``request.requeue``. A loss on the way is
an event, and the same parts follow once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.trace import Span, SpanContext
from opentelemetry.util.types import AttributeValue

from enginebay import tracing
from enginebay.engine.parts import CoreParts
from enginebay.engine.recovery import Evidence, Setback
from enginebay.engine.requests import Requests
from enginebay.engine.watch import cause_of
from enginebay.errors import in_words, one_line
from enginebay.interfaces import WorkerExit

__all__ = ["CAUSES", "Recovery", "recovering"]

CAUSES: Final = {
    Evidence.STALE: "stale_answer",
    Evidence.FAILED: "worker_failed",
    Evidence.LOST: "worker_lost",
    Evidence.HUNG: "worker_hung",
    Evidence.UNBORN: "start_failed",
}
"""``enginebay.recovery.cause`` by evidence."""

_MOST: Final = 512
"""Characters of a reason."""


@contextmanager
def recovering(setback: Setback, parts: CoreParts) -> Iterator[Recovery]:
    """The block is the recovery from this setback. What leaves it is why there is none: the trace says it."""
    with tracing.span(tracing.ENGINE_RECOVER, root=True) as span:
        recovery = Recovery(span, parts)
        recovery.lost(setback)
        try:
            yield recovery
        except BaseException as error:
            recovery.gave_up(error)
            raise
        finally:
            recovery.end()


class Recovery:
    """The open root span; nothing is gathered for one that is not recorded."""

    def __init__(self, span: Span, parts: CoreParts) -> None:
        self._span, self._parts = span, parts
        self._recorded = span.is_recording()
        self._num_void = self._num_moved = 0
        self._lost: tuple[str, ...] = ()

    def lost(self, setback: Setback) -> None:
        """What befell the workers, first or once more; asked while the roster still has those that it befell."""
        if not self._recorded:
            return
        roster = self._parts.roster
        about = {
            tracing.CAUSE: CAUSES[setback.evidence],
            tracing.LOST_IN: str(roster.phase),
            tracing.GENERATION: self._parts.generation.current,
            tracing.GROUP: roster.group,
            **_end_of(roster.first_exit),
        }
        if not self._lost:
            self._lost = roster.incarnations
            self._span.set_attributes(about)
        self._look_for_end()
        self._span.add_event("lost", {**about, tracing.REASON: one_line(str(setback), _MOST)})

    def void(self, num_steps: int, failed: Sequence[SpanContext]) -> None:
        """So many steps never happened, and the next generation begins. ``failed``: the spans of those recorded."""
        self._num_void += num_steps
        for context in failed:
            self._span.add_link(context)

    def convicted(self, request_id: str, why: str) -> None:
        """That request is what the workers died of, and is ended."""
        self._span.add_event("convicted", {tracing.REQUEST_ID: request_id, tracing.REASON: one_line(why, _MOST)})

    def isolated(self, request_id: str | None) -> None:
        """The scheduler was given that request alone; None: all of them."""
        if request_id is not None:
            self._span.add_event("isolated", {tracing.REQUEST_ID: request_id})

    @property
    def context(self) -> SpanContext | None:
        """What the span of a request can link to; None: nobody records this one."""
        return self._span.get_span_context() if self._recorded else None

    def moved(self, counts: Mapping[int, int]) -> None:
        """So many requests have gone to each of these other groups, by its number."""
        self._num_moved += sum(counts.values())
        self._span.set_attribute(tracing.MOVED, self._num_moved)
        for group, count in sorted(counts.items()):
            self._span.add_event("moved", {tracing.GROUP: group, tracing.MOVED: count})

    @contextmanager
    def requeue(self, requests: Requests) -> Iterator[SpanContext | None]:
        """The block gives the requests to a fresh scheduler; yields what their spans can link to."""
        with tracing.span(tracing.REQUEST_REQUEUE) as span:
            if self._recorded:
                counts = {tracing.REQUEUED: len(requests), tracing.TO_RECOMPUTE: requests.num_computed}
                span.set_attributes(counts)
                self._span.set_attributes(counts)
            yield self.context

    def gave_up(self, error: BaseException) -> None:
        """There is no recovery, because of ``error``."""
        self._span.add_event("gave_up", {tracing.REASON: one_line(in_words(error), _MOST)})

    def end(self) -> None:
        """Whatever came of it."""
        if self._recorded:
            self._look_for_end()
            self._span.set_attributes(
                {tracing.GENERATION_AFTER: self._parts.generation.current, tracing.STEPS_VOID: self._num_void}
            )

    def _look_for_end(self) -> None:
        """How the workers of the first loss ended, if that was told after it."""
        told = self._parts.roster.exit_before
        if told is not None and told.incarnation in self._lost:
            self._span.set_attributes(_end_of(told))


def _end_of(told: WorkerExit | None) -> dict[str, AttributeValue]:
    """Which worker it was, and how it ended; nothing where no end was told."""
    if told is None:
        return {}
    about: dict[str, AttributeValue] = {
        tracing.RANK: told.rank,
        tracing.INCARNATION: told.incarnation,
        tracing.EXIT: cause_of(told),
    }
    if told.exit_code is not None:
        about[tracing.EXIT_CODE] = told.exit_code
    if told.signal is not None:
        about[tracing.EXIT_SIGNAL] = told.signal
    return about

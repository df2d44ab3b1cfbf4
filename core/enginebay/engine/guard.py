"""A scheduler as the core calls it: what a stranger's code raises, or answers in a wrong type, is told with its name.

After a void a fresh one takes its place: what the old one knew is never used again, except for its counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import add, attrgetter, itemgetter
from typing import Any, Final

import msgspec

from enginebay.engine.annexes import fault_of_annex
from enginebay.errors import EnginebayError, PolicyFailed, RequestError, in_words, is_interrupt, shown
from enginebay.interfaces import Scheduler
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    GrammarOutput,
    NewRequest,
    ResumedRequest,
    RunningRequest,
    SchedulerOutput,
    SchedulerStats,
    StepReport,
)

__all__ = ["GuardedScheduler"]

_FIELDS: Final[dict[str, type[object]]] = {
    "new": NewRequest,
    "running": RunningRequest,
    "resumed": ResumedRequest,
    "finished": str,
    "preempted": str,
    "constrained": str,
}

_NAMES: Final = SchedulerStats.__struct_fields__
_COUNTED: Final = tuple(name for name in _NAMES if not name.startswith("num_"))
"""Those of the figures that count since the start; what begins with "num_" says how it stands."""

_LISTS: Final = attrgetter(*_FIELDS)
_FIGURES: Final = attrgetter(*_NAMES)
_COUNTERS: Final = itemgetter(*map(_NAMES.index, _COUNTED))
"""Each reads all of them at once: of a schedule, of statistics, and of these as a tuple."""

_NONE: Final[tuple[()]] = ()
"""Every empty tuple is this one: most of a step's lists hold nothing, and need no look."""

_LATE: Final = 1000
"""Steps after which it must have been said that a request has ended."""

_STR: Final = frozenset({str})
_INT: Final = frozenset({int})
"""Sets of types are compared, where it can be done: that costs a third of a look at each value."""


class GuardedScheduler:
    """The scheduler's methods; every exception that is not one of ours becomes ``PolicyFailed``, and so does a value
    of another type than the method's.

    ``name`` is how messages name it ("scheduler 'fcfs' 1.0"); ``make`` returns an empty one over an empty KV cache.
    """

    def __init__(self, make: Callable[[], Scheduler[Any]], *, name: str) -> None:
        self._make = make
        self._name = name
        self._before: SchedulerStats | None = None
        self._last = SchedulerStats()
        self.is_void = False
        """Whether there are no workers that could run anything of what it has."""
        self._begun: set[str] = set()
        self._ended: dict[str, int] = {}
        self._steps = 0
        self._scheduler = make()

    def void(self) -> None:
        """The workers are gone: nothing runs, and no block is in use, until another takes this scheduler's place."""
        self.is_void, self._last = True, _at_rest(self._last)

    def renew(self) -> None:
        """Put an empty scheduler in this one's place."""
        self._keep_counters()
        self._begun, self._ended = set(), {}
        try:
            self._scheduler = self._make()
        except EnginebayError:
            raise
        except BaseException as error:
            raise self._blamed("its factory", error) from error

    def adopt(self, other: GuardedScheduler) -> None:
        """Put the other's scheduler, with what it was given by now, in this one's place, under its name."""
        self._keep_counters()
        self._make, self._name, self._scheduler = other._make, other._name, other._scheduler
        self._begun, self._ended = other._begun, other._ended

    def _keep_counters(self) -> None:
        """Another scheduler takes this one's place."""
        self._before = self.make_stats()
        if self.is_void:
            self.is_void, self._last = False, _at_rest(self._before)

    def add_request(self, request: EngineRequest) -> None:
        self._ask("add_request", request)

    def add_choices(self, choices: Sequence[EngineRequest]) -> None:
        """Add all choices of a request, or none: when one is refused, those before it are taken back."""
        for number, request in enumerate(choices):
            try:
                self.add_request(request)
            except RequestError:
                self.finish_requests([before.request_id for before in choices[:number]], FinishReason.ERROR)
                raise

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        self._ask("finish_requests", request_ids, status)
        self._note_ended(request_ids)

    def schedule(self) -> SchedulerOutput:
        scheduled: SchedulerOutput = self._ask("schedule")
        self._check("schedule", scheduled, SchedulerOutput)
        try:
            self._check_fields(scheduled)
            fault = fault_of_annex(scheduled.annex) if scheduled.annex else ""
        except EnginebayError:
            raise
        except BaseException as error:
            raise self._blamed("a look at what schedule() returned", error) from error
        if fault:
            raise PolicyFailed(f"{self._name} scheduled a step with {fault}")
        if scheduled.num_scheduled_tokens:
            self._steps += 1
        if scheduled.new or scheduled.finished or self._ended:
            self._note_told(scheduled)
        return scheduled

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        grammar: GrammarOutput | None = self._ask("get_grammar_bitmask", scheduler_output)
        if grammar is not None:
            self._check("get_grammar_bitmask", grammar, GrammarOutput)
            if not _all_are(grammar.request_ids, str) or {
                type(grammar.bitmask),
                type(grammar.words_per_row),
            } != {bytes, int}:
                raise PolicyFailed(
                    f"{self._name} returned from get_grammar_bitmask what workers cannot read: request_ids is a tuple "
                    "of str, bitmask is bytes, and words_per_row is an int"
                )
            if fault := self._fault_of_masks(grammar, scheduler_output):
                raise PolicyFailed(f"{self._name} returned from get_grammar_bitmask {fault}")
        return grammar

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        self._ask("update_from_output", scheduler_output, committed)
        if committed.finished:
            self._note_ended(committed.finished)

    def has_requests(self) -> bool:
        answer: object = self._ask("has_requests")
        try:
            return bool(answer)
        except BaseException as error:
            raise self._blamed("the answer of has_requests()", error) from error

    def make_stats(self) -> SchedulerStats:
        """How it stands; the counters go on from those of the schedulers before it."""
        stats: SchedulerStats = self._ask("make_stats")
        self._check("make_stats", stats, SchedulerStats)
        try:
            figures = _FIGURES(stats)
        except BaseException as error:
            raise self._blamed("a look at what make_stats() returned", error) from error
        if {*map(type, figures)} != _INT:
            raise PolicyFailed(f"{self._name} returned {shown(stats, 400)} from make_stats: its fields are integers")
        if (before := self._before) is not None:
            sums = map(add, _COUNTERS(_FIGURES(before)), _COUNTERS(figures))
            stats = msgspec.structs.replace(stats, **dict(zip(_COUNTED, sums, strict=True)))
        self._last = stats
        return stats

    @property
    def last_stats(self) -> SchedulerStats:
        """What ``make_stats`` answered last; nobody is asked."""
        return self._last

    def on_step(self, report: StepReport) -> None:
        self._ask("on_step", report)

    def _note_ended(self, request_ids: Iterable[str]) -> None:
        """Of those that the workers know, a schedule has yet to say that they have ended."""
        for request_id in request_ids:
            if request_id in self._begun:
                self._ended[request_id] = self._steps

    def _note_told(self, scheduled: SchedulerOutput) -> None:
        """What the workers keep of requests grows with ``new`` and falls with ``finished`` alone."""
        for request_id in scheduled.finished:
            if request_id not in self._begun:
                raise PolicyFailed(
                    f"{self._name} scheduled a step in which request {request_id!r} has ended, which the workers do "
                    "not know: each that was begun ends once"
                )
            self._begun.discard(request_id)
            self._ended.pop(request_id, None)
        self._begun.update([new.request_id for new in scheduled.new])
        for request_id, since in self._ended.items():
            if self._steps - since > _LATE:
                raise PolicyFailed(
                    f"{self._name} has drawn up {_LATE} steps since request {request_id!r} ended, and not one of them "
                    "says so to the workers ('finished')"
                )
            break

    def _fault_of_masks(self, grammar: GrammarOutput, scheduled: SchedulerOutput) -> str:
        """Why these masks are none of this step's; "" where they are. One that has ended meanwhile needs none."""
        request_ids, words = grammar.request_ids, grammar.words_per_row
        if request_ids and words < 1:
            return f"masks of {words} words"
        if len(grammar.bitmask) != 4 * words * len(request_ids):
            return f"{len(grammar.bitmask)} bytes for {len(request_ids)} masks of {words} words each"
        drafts = {running.request_id: len(running.draft_token_ids) for running in scheduled.running}
        counts = Counter(request_ids)
        for request_id in dict.fromkeys((*request_ids, *scheduled.constrained)):
            if request_id not in scheduled.num_scheduled_tokens:
                return f"a mask for request {request_id!r}, which is not in the step"
            wanted, gone = 1 + drafts.get(request_id, 0), request_id in self._ended or request_id not in self._begun
            if counts[request_id] != wanted and not (gone and not counts[request_id]):
                return f"{counts[request_id]} masks for request {request_id!r}, which draws at {wanted} positions"
        return ""

    def _ask(self, method: str, *args: object) -> Any:
        """Call the scheduler's method of that name."""
        try:
            return getattr(self._scheduler, method)(*args)
        except PolicyFailed:
            raise
        except RequestError as error:
            if method == "add_request":
                raise
            raise self._blamed(f"{method}()", error) from error
        except BaseException as error:
            raise self._blamed(f"{method}()", error) from error

    def _blamed(self, what: str, error: BaseException) -> PolicyFailed:
        """The error to raise; an interrupt is nobody's fault, and goes on."""
        if is_interrupt(error):
            raise error
        return PolicyFailed(f"{self._name}: {what} raised {in_words(error)}")

    def _check(self, method: str, value: object, expected: type[object]) -> None:
        if not isinstance(value, expected):
            raise PolicyFailed(
                f"{self._name} returned {type(value).__name__} from {method}, and must return {expected.__name__}"
            )

    def _check_fields(self, scheduled: SchedulerOutput) -> None:
        """The fields that the core walks through: a struct does not look at what it is made of."""
        for (field, kind), values in zip(_FIELDS.items(), _LISTS(scheduled), strict=True):
            if values is not _NONE and not _all_are(values, kind):
                raise PolicyFailed(f"{self._name} scheduled a step whose {field!r} is not a tuple of {kind.__name__}")
        counts: object = scheduled.num_scheduled_tokens
        if not isinstance(counts, dict):
            raise PolicyFailed(f"{self._name} scheduled a step whose 'num_scheduled_tokens' is no dict")
        if (
            {*map(type, counts)} <= _STR
            and {*map(type, counts.values())} <= _INT
            and min(counts.values(), default=1) > 0
        ):
            return
        for request_id, count in counts.items():
            if not isinstance(request_id, str) or type(count) is not int or count < 1:
                raise PolicyFailed(
                    f"{self._name} scheduled {shown(count, 80)} tokens of request {shown(request_id, 80)}; "
                    "a request that runs has an integer of 1 or more"
                )


def _at_rest(stats: SchedulerStats) -> SchedulerStats:
    """Of a scheduler whose workers are gone: its counters, over an empty cache."""
    return msgspec.structs.replace(
        stats, num_running=0, num_waiting=0, num_free_blocks=stats.num_blocks, num_cached_blocks=0
    )


def _all_are(values: object, kind: type[object]) -> bool:
    """Whether this is a tuple of nothing else."""
    if not isinstance(values, tuple):
        return False
    return not values or {*map(type, values)} == {kind} or all(isinstance(value, kind) for value in values)

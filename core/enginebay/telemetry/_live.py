"""A trace that is being written, in words: a line for each request, start and recovery, and a page of the last seconds.

Spans come when they end, so what runs at the moment is not in it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from enginebay import tracing
from enginebay.telemetry._forest import RECOVERY, REQUEST, START, STEP, forest
from enginebay.telemetry._read import SpanRecord
from enginebay.telemetry._summary import render_summary, summary
from enginebay.telemetry._text import one_line

WINDOW_SECONDS: Final = 10
_LAST: Final = 8


class Said(NamedTuple):
    """Something that ended, in words; ``end_ns`` since 1970."""

    end_ns: int
    text: str


class Live:
    """Counts what has ended since the file's begin, and keeps the spans of the last seconds."""

    def __init__(self) -> None:
        self._window: deque[SpanRecord] = deque()
        self._newest = 0
        self._last: deque[Said] = deque(maxlen=_LAST)
        self._ended: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def add(self, spans: Iterable[SpanRecord]) -> list[Said]:
        """What the new spans say, in the order in which it ended."""
        said = []
        for span in spans:
            self._window.append(span)
            self._newest = max(self._newest, span.end_ns)
            kind = kind_of(span)
            if not kind:
                continue
            self._ended[kind] += 1
            self._failed[kind] += span.status == "error"
            if kind != STEP:
                said.append(Said(span.end_ns, f"{kind:<8}  {describe(span)}"))
        self._forget(self._newest)
        said.sort()
        self._last.extend(said)
        return said

    def last(self) -> list[Said]:
        """The last few of what ``add`` has said."""
        return list(self._last)

    def totals(self) -> str:
        """How many of each kind have ended since the file's begin."""
        told = []
        for kind, one, many in _WORDS:
            count, failed = self._ended[kind], self._failed[kind]
            if count:
                told.append(f"{count} {one if count == 1 else many}" + (f" ({failed} failed)" if failed else ""))
        return ", ".join(told)

    def table(self, now_ns: int) -> str:
        """Spans that ended within the last seconds, by kind and name; "" when there are none."""
        self._forget(now_ns)
        spans = [span for span in self._window if span.end_ns >= now_ns - WINDOW_SECONDS * 10**9]
        return render_summary(summary(forest(spans))) if spans else ""

    def _forget(self, now_ns: int) -> None:
        """Drop what came long ago; a few that came late stay a little longer."""
        begin = now_ns - WINDOW_SECONDS * 10**9
        while self._window and self._window[0].end_ns < begin:
            self._window.popleft()


_WORDS: Final = (
    (REQUEST, "request", "requests"),
    (STEP, "recorded step", "recorded steps"),
    (START, "start", "starts"),
    (RECOVERY, "recovery", "recoveries"),
)


def kind_of(span: SpanRecord) -> str:
    """What the span is the whole of: a request, a step, a start, a recovery; "" for any other."""
    (node,) = forest([span])
    return node.kind if node.kind in (REQUEST, STEP, START, RECOVERY) else ""


def describe(span: SpanRecord) -> str:
    """A request, start or recovery in one line."""
    told = span.attributes
    words = []
    first = next((event for event in span.events if event.name == "first_token"), None)
    if first is not None:
        words.append(f"first token after {(first.time_ns - span.start_ns) / 1e6:.2f} ms")
    for key, one, many in (
        (tracing.GEN_AI_OUTPUT_TOKENS, "token", "tokens"),
        (tracing.PREEMPTIONS, "preemption", "preemptions"),
        (tracing.RECOVERIES, "recovery", "recoveries"),
        (tracing.REQUEUED, "request requeued", "requests requeued"),
    ):
        if isinstance(number := told.get(key), int) and (number or key == tracing.GEN_AI_OUTPUT_TOKENS):
            words.append(f"{number} {one if number == 1 else many}")
    why = (told.get(key) for key in (tracing.FINISH_REASON, tracing.CAUSE, tracing.EXECUTOR))
    words.extend(one_line(str(one)) for one in why if one is not None)
    if span.status == "error":
        words.append(f"ERROR {one_line(span.message)}".rstrip())
    return f"{one_line(span.name)}  {span.duration_ms:.2f} ms" + "".join(f", {word}" for word in words)

"""All spans by kind and name, as one table: how many, how long, and whose the time was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay.telemetry._forest import RECOVERY, REQUEST, START, STEP, Node, shares, walk
from enginebay.telemetry._text import one_line

_ORDER = (START, REQUEST, STEP, RECOVERY)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Spans of one name: milliseconds, and the part (0 to 1) of their kind's time in which nothing below them ran."""

    name: str
    count: int
    median: float
    p99: float
    own: float
    share: float
    failed: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Spans of one kind, those that take most first: how many of the kind there are, and their time in milliseconds."""

    kind: str
    count: int
    total: float
    rows: tuple[Row, ...]


@dataclass(slots=True)
class _Tally:
    times: list[float] = field(default_factory=list)
    own: float = 0.0
    failed: int = 0


def summary(roots: Sequence[Node]) -> list[Group]:
    """A group for each kind: starts, requests, steps, recoveries, then others by name."""
    tallies: dict[str, dict[str, _Tally]] = {}
    heads: dict[str, int] = {}
    for root in roots:
        parts = shares(root)
        for node in walk(root):
            tally = tallies.setdefault(node.kind, {}).setdefault(node.span.name, _Tally())
            tally.times.append(node.span.duration_ms)
            tally.own += parts[id(node)] / 1e6
            tally.failed += node.span.status == "error"
            heads[node.kind] = heads.get(node.kind, 0) + node.is_head
    known = [kind for kind in _ORDER if kind in tallies]
    return [_group(kind, heads[kind], tallies[kind]) for kind in [*known, *sorted(set(tallies) - set(known))]]


def _group(kind: str, count: int, tallies: dict[str, _Tally]) -> Group:
    total = sum(tally.own for tally in tallies.values())
    rows = []
    for name, tally in tallies.items():
        tally.times.sort()
        rows.append(
            Row(
                name=name,
                count=len(tally.times),
                median=percentile(tally.times, 50),
                p99=percentile(tally.times, 99),
                own=tally.own,
                share=tally.own / total if total else 0.0,
                failed=tally.failed,
            )
        )
    rows.sort(key=lambda row: (-row.own, row.name))
    return Group(kind=kind, count=count, total=total, rows=tuple(rows))


def render_summary(groups: Sequence[Group]) -> str:
    """The groups as one table; the shares of a group make a hundred percent."""
    labels = [_label(group) for group in groups]
    names = [[f"  {one_line(row.name)}" for row in group.rows] for group in groups]
    width = max([len(text) for text in [*labels, *(name for some in names for name in some)]] + [4])
    heads = f"{'count':>7}  {'median ms':>11}  {'p99 ms':>11}  {'own ms':>11}  {'share':>6}  {'failed':>6}"
    lines = [f"{'span'.ljust(width)}  {heads}"]
    for group, label, some in zip(groups, labels, names, strict=True):
        lines.append(f"{label.ljust(width)}  {'':>7}  {'':>11}  {'':>11}  {group.total:>11.3f}")
        lines.extend(
            f"{name.ljust(width)}  {row.count:>7}  {row.median:>11.3f}  {row.p99:>11.3f}  {row.own:>11.3f}  "
            f"{100 * row.share:>5.1f}%  {row.failed:>6}"
            for name, row in zip(some, group.rows, strict=True)
        )
    return "\n".join(lines)


def _label(group: Group) -> str:
    return f"{one_line(group.kind)} ({group.count})"


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile: the smallest value that ``percent`` of a hundred values do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

"""How workers stand, in words: one row for each, one line for each change, one line for each row of a history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginebay.messages import ControlDone, SinkState, WorkerStatus
    from enginebay.status.sinks.sqlite import HistoryRow

__all__ = ["changes", "clock_time", "history_line", "rows"]


def rows(done: ControlDone) -> list[tuple[str, str]]:
    """What ``ReadStatus`` was answered, by name: the facts, then the workers, then the sinks."""
    found = list(done.facts.items())
    if done.health is not None:
        found += [(one.slot.name, _worker(one, done.health.wall)) for one in done.health.workers]
        found += [(f"sink {one.name}", _sink(one)) for one in done.health.sinks]
    return found


def changes(before: Mapping[str, str], done: ControlDone) -> dict[str, str]:
    """What is another than before, by name: health and workers without their ages, which change all the time."""
    assert done.health is not None, "the engine says how it is"
    now = {"health": "healthy" if done.health.healthy else done.health.why}
    now |= {one.slot.name: _phase(one) for one in done.health.workers}
    return {name: said for name, said in now.items() if before.get(name) != said}


def clock_time(wall: float) -> str:
    """``2026-03-01 15:04:05``, of this host."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


def history_line(row: HistoryRow) -> tuple[str, str, str, str]:
    """A change: when, of which engine, in which slot, and what."""
    why = ": ".join(word for word in (row.reason, row.message) if word)
    return clock_time(row.wall), row.engine, row.slot, row.phase + (f" ({why})" if why else "")


def _worker(status: WorkerStatus, wall: float) -> str:
    """``Ready for 12 s, pid 7, 2 restarts, ready after 6.1 s: Starting 0.5, …; BackOff: restart 3 follows in 4 s``."""
    from enginebay.status.latency import start_of

    ready = status.condition("Ready")
    words = [_phase(status)]
    if ready is not None:
        words[0] += f" for {_duration(wall - ready.since)}" if ready.truth == "True" else ""
    if status.incarnation.pid:
        words.append(f"pid {status.incarnation.pid}")
    if status.restarts:
        words.append(f"{status.restarts} restart{'s' if status.restarts > 1 else ''}")
    if (start := start_of(status)) is not None:
        words.append(start.words)
    said = [f"{one.kind}: {one.message}" for one in status.conditions if one.message]
    return "; ".join([", ".join(words), *said])


def _phase(status: WorkerStatus) -> str:
    why = ": ".join(word for word in (status.reason, status.message) if word)
    return str(status.phase) + (f" ({why})" if why else "")


def _sink(sink: SinkState) -> str:
    if not sink.failures:
        return "takes statuses" + (f", {sink.behind} to come" if sink.behind else "")
    return f"failed {sink.failures} times in a row, {sink.behind} records behind: {sink.error}"


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

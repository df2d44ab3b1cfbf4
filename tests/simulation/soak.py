"""Very many seeds, block by block: what is done is kept in a file, and goes on from there when it is run again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec

import enginebay
from simulation.run import Totals, run_seeds, start_child, totals_of_child

__all__ = ["Bar", "soak", "spread"]

BLOCK = 10_000
"""Seeds after which the file is written."""

_SIMULATED = ("engine", "scheduling", "kvcache", "status")


class Kept(msgspec.Struct):
    """The file: seeds up to ``done`` are in ``totals``, and ``code`` is what ran."""

    code: str
    first: int
    done: int
    totals: Totals


def soak(
    first: int,
    last: int,
    *,
    state: Path,
    processes: int = 1,
    mutant: str = "",
    block: int = BLOCK,
    progress: Callable[[int], None] = lambda done: None,
) -> Totals:
    """The totals of all seeds, without their digests.

    What ``state`` says of the same code counts as done; of other code, or another first seed, it is written anew.
    """
    code = _code(mutant)
    kept = Kept(code=code, first=first, done=first, totals=Totals())
    if state.exists():
        found = msgspec.json.decode(state.read_bytes(), type=Kept)
        if (found.code, found.first) == (code, first) and found.done <= last:
            kept = found
    progress(kept.done - first)
    while kept.done < last:
        end = min(kept.done + block, last)
        seconds, more = kept.totals.seconds, spread(kept.done, end, processes, mutant)
        kept.totals.join(more)
        kept.totals.seconds, kept.totals.digests = seconds + more.seconds, []
        progress(end - kept.done)
        kept.done = end
        state.parent.mkdir(parents=True, exist_ok=True)
        written = state.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(kept))
        written.replace(state)
    return kept.totals


def spread(first: int, last: int, processes: int, mutant: str = "") -> Totals:
    """Run these seeds in so many processes, each with a PYTHONHASHSEED of its own; one runs here."""
    if processes == 1:
        return run_seeds(range(first, last))
    edges = [first + (last - first) * part // processes for part in range(processes + 1)]
    children = [
        start_child(start, stop, hash_seed=part, mutant=mutant) for part, (start, stop) in enumerate(pairwise(edges))
    ]
    totals = Totals()
    for child in children:
        totals.join(totals_of_child(child))
    return totals


class Bar:
    """A progress bar on stderr, with the time that is left, when that is a terminal."""

    def __init__(self, total: int, *, show: bool = True) -> None:
        self._total, self._done = total, 0
        self._began = time.monotonic()
        self._before: int | None = None
        self._show = show and sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        """So many more are done."""
        if self._before is None:
            self._before = done if time.monotonic() - self._began < 0.1 else 0  # those of an earlier run took no time
        self._done += done
        if self._show:
            filled = 40 * self._done // max(self._total, 1)
            took, here = time.monotonic() - self._began, self._done - self._before
            left = f", {took / here * (self._total - self._done) / 60:.0f} min left" if here else ""
            line = f"\r[{'#' * filled}{'.' * (40 - filled)}] {self._done}/{self._total}{left}  "
            print(line, end="\n" if self._done >= self._total else "", file=sys.stderr, flush=True)


def _code(mutant: str) -> str:
    """Stands for the code that is simulated and that simulates."""
    core, here = Path(enginebay.__file__).parent, Path(__file__).parent
    files = [path for part in _SIMULATED for path in sorted((core / part).rglob("*.py"))]
    digest = sha256(mutant.encode())
    for path in (*files, *sorted(here.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

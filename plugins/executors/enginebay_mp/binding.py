"""Which CPUs and how many threads each worker gets: pure functions, and the reading of /sys that they need."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from enginebay.errors import CapabilityError

__all__ = ["THREAD_VARIABLES", "cpus_of", "numa_nodes", "shares", "spread", "thread_environment"]

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by the libraries that compute on CPUs, when they are loaded."""

_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def cpus_of(text: str) -> tuple[int, ...]:
    """``(0, 1, 2, 3, 8)`` of ``"0-3,8"``, as Linux writes CPU sets; raises ``ValueError``."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise ValueError(f"{text!r} is no set of CPUs, such as '0-3' or '0,2,4-7'")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def numa_nodes(root: Path = Path("/")) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each NUMA node, by its number; empty where /sys does not tell."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for entry in (root / "sys/devices/system/node").glob("node[0-9]*"):
        try:
            found.append((int(entry.name[4:]), cpus_of((entry / "cpulist").read_text(encoding="utf-8").strip())))
        except (OSError, ValueError):  # a node of memory alone has an empty list
            continue
    return tuple(cpus for _, cpus in sorted(found))


def spread(allowed: Sequence[int], nodes: Sequence[Sequence[int]], ranks: int) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each rank: even shares of ``allowed``, neighbours first, so that few shares cross a node's border.

    With more ranks than CPUs, several ranks share one CPU.
    """
    placed = {cpu: number for number, cpus in enumerate(nodes) for cpu in cpus}
    ordered = sorted(set(allowed), key=lambda cpu: (placed.get(cpu, len(nodes)), cpu))
    if ranks > len(ordered):
        return tuple((ordered[rank % len(ordered)],) for rank in range(ranks))
    edges = [rank * len(ordered) // ranks for rank in range(ranks + 1)]
    return tuple(tuple(ordered[low:high]) for low, high in pairwise(edges))


def shares(bind: str | Sequence[str], ranks: int, root: Path = Path("/")) -> tuple[tuple[int, ...], ...]:
    """What the option ``bind_cpus`` gives each rank; an empty set means all that this process may use.

    Raises ``CapabilityError`` when a list does not fit the world or this machine.
    """
    if bind == "off":
        return ((),) * ranks
    allowed = sorted(os.sched_getaffinity(0))
    if isinstance(bind, str):
        return spread(allowed, numa_nodes(root), ranks)
    if len(bind) != ranks:
        raise CapabilityError(
            f"executor 'mp': bind_cpus names {len(bind)} sets of CPUs, and there are {ranks} ranks: give one for each"
        )
    sets = tuple(cpus_of(one) for one in bind)
    missing = sorted({cpu for one in sets for cpu in one} - set(allowed))
    if missing:
        raise CapabilityError(
            f"executor 'mp': bind_cpus names CPU {missing[0]}, and this process may use {_short(allowed)}"
        )
    return sets


def thread_environment(environ: Mapping[str, str], cores: int) -> dict[str, str]:
    """Variables that keep a rank's libraries to its share of the cores; none when the user has set one of them."""
    if any(environ.get(name) for name in THREAD_VARIABLES):
        return {}
    return dict.fromkeys(THREAD_VARIABLES, str(max(1, cores)))


def _short(cpus: Sequence[int]) -> str:
    return (
        f"{cpus[0]}-{cpus[-1]}" if len(cpus) > 1 and cpus[-1] - cpus[0] == len(cpus) - 1 else ",".join(map(str, cpus))
    )

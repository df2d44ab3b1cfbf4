"""What of a manifest is still there: named segments, and processes that bear the mark of a worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from enginebay.runfolder._leftovers import SEGMENT, SHM

__all__ = ["PROCESS", "remains_of"]

PROCESS = "process"
"""The kind of a line that names an entry of the environment, which a worker and all that it starts have."""


def remains_of(lines: Iterable[str]) -> tuple[str, ...]:
    """In words, what these lines of a manifest name and what is still there; kinds for people are passed over."""
    found, marks = [], {}
    for line in lines:
        kind, _, name = line.partition(" ")
        if kind == SEGMENT and "/" not in name and (SHM / name).exists():
            found.append(f"segment {name}")
        elif kind == PROCESS and "=" in name:
            marks[name.encode()] = name
    return (*found, *(_bearers(marks) if marks else ()))


def _bearers(marks: dict[bytes, str]) -> list[str]:
    """The living processes of this user with one of these in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # another user's, or gone
                entries = set((folder / "environ").read_bytes().split(b"\0"))
                if not entries.isdisjoint(marks):
                    found.append(f"process {folder.name}")
    return found

"""A worker extension as a stranger would write it: it marks the worker that it is in, and can be asked for the mark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Kind, Options, WorkerExtensionContext, WorkerExtensionPlugin
from enginebay.testing._offer import offer


class MarksOptions(Options):
    """What the mark says."""

    mark: Annotated[str, Field(description="Any text.")] = "unmarked"
    closed: Annotated[str, Field(description="File that is made when it is closed.")] = ""


class Marks:
    """Made in every worker."""

    def __init__(self, context: WorkerExtensionContext[MarksOptions]) -> None:
        self._context = context
        self._notes: list[str] = []

    def where(self, payload: bytes) -> bytes:
        """The mark, with what only this worker knows."""
        context = self._context
        runner = type(context.runner).__name__
        told = {"mark": context.options.mark, "rank": context.place.rank, "pid": os.getpid(), "runner": runner}
        return json.dumps(told).encode()

    def note(self, payload: bytes) -> None:
        """Keep a text."""
        self._notes.append(payload.decode())

    def notes(self, payload: bytes) -> bytes:
        """What was kept."""
        return json.dumps(self._notes).encode()

    def explode(self, payload: bytes) -> bytes:
        """Raise."""
        raise ValueError(f"asked to explode by {payload.decode()}")

    def lie(self, payload: bytes) -> object:
        """Return what no method may."""
        return {"not": "bytes"}

    def secret(self, payload: bytes) -> bytes:
        """Not declared."""
        return b"nobody gets here"

    def close(self) -> None:
        """Say that it was closed."""
        if self._context.options.closed:
            Path(self._context.options.closed).touch()


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[MarksOptions]]:
    """The extension ``marks``."""
    return [
        WorkerExtensionPlugin(
            name="marks",
            summary="Marks the workers.",
            options=MarksOptions,
            factory=Marks,
            methods=("where", "note", "notes", "explode", "lie"),
        )
    ]


def install_marks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it an installed package, also for processes that the test starts."""
    offer(folder, monkeypatch, Kind.WORKER_EXTENSION, "marks", "support.marks")


def with_marks(config: dict[str, object], **options: str) -> dict[str, object]:
    """The config with the extension."""
    return config | {"worker": {"extensions": ["marks"], "options": {"marks": options}}}

"""The file exporter: one line of OTLP/JSON per batch, for people without a collector."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from enginebay.errors import ConfigError
from enginebay.telemetry import _otlp

_log = logging.getLogger(__name__)


class FileExporter(SpanExporter):
    """Appends to a file that only its owner may read; a line is one write, so that processes may share the file."""

    def __init__(self, path: Path) -> None:
        """Open the file, made with mode 0600 if it is not there; raises ``ConfigError`` when that cannot be done."""
        self._path = path
        if not path.parent.is_dir():
            raise ConfigError(
                f"[telemetry] file = {path}: the folder {path.parent} does not exist. Make it, or name another file."
            )
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not block us
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigError(f"[telemetry] file = {path}: cannot be written: {error.strerror}.") from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise ConfigError(f"[telemetry] file = {path}: is not a regular file. Name one, or a new file.")
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one line; a failure is logged once until a write succeeds again, and never reaches the engine."""
        try:
            start = os.fstat(self._fd).st_size
            self._write(_otlp.encode(spans), start)
        except OSError as error:
            if not self._is_failing:
                _log.warning("%s: spans are lost, the file cannot be written: %s", self._path, error.strerror)
            self._is_failing = True
            return SpanExportResult.FAILURE
        self._is_failing = False
        return SpanExportResult.SUCCESS

    def _write(self, line: bytes, start: int) -> None:
        written = os.write(self._fd, line)
        if written == len(line):
            return
        try:
            while written < len(line):  # a full disk takes part of a line
                written += os.write(self._fd, line[written:])
        except OSError:
            if os.fstat(self._fd).st_size == start + written:  # nobody wrote meanwhile: leave no half line
                os.ftruncate(self._fd, start)
            raise

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is held back here."""
        return True

    def shutdown(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

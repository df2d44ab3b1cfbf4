"""Set-up and end of a process's tracing; with nothing configured, nothing is imported and nothing runs."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from enginebay.config import TelemetryConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

_log = logging.getLogger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Telemetry:
    """A process's tracing, from ``setup`` to ``shutdown``."""

    def __init__(self, processors: list[SpanProcessor], uninstall: Callable[[], None] | None) -> None:
        """Made by ``setup``; takes over the processors."""
        self._processors = processors
        self._uninstall = uninstall
        self._is_down = False
        if processors:
            atexit.register(self.shutdown)

    @property
    def is_exporting(self) -> bool:
        """Whether spans go anywhere."""
        return bool(self._processors) and not self._is_down

    def flush(self, timeout: float = 2.0) -> bool:
        """Send what is queued, for at most ``timeout`` seconds; whether all of it went in that time.

        A process that may be killed calls this after its start, or its start's spans could be lost with it.
        """
        return self._bounded("flush", timeout, lambda processor: processor.force_flush())

    def shutdown(self, timeout: float = 2.0) -> None:
        """Send what is queued and end, within ``timeout`` seconds. Idempotent; what could not be sent is logged."""
        if self._is_down:
            return
        self._is_down = True
        atexit.unregister(self.shutdown)
        if self._uninstall is not None:
            self._uninstall()
        if not self._bounded("shutdown", timeout, lambda processor: processor.shutdown()):
            _log.warning("spans are lost: the exporter did not end within %g s", timeout)

    def _bounded(self, what: str, timeout: float, act: Callable[[SpanProcessor], Any]) -> bool:
        """The SDK's own calls ignore their timeouts, so they run in a thread that we wait for only so long."""
        deadline = time.monotonic() + timeout
        threads = [
            threading.Thread(name=f"enginebay-telemetry-{what}", target=act, args=(processor,), daemon=True)
            for processor in self._processors
        ]
        for thread, processor in zip(threads, self._processors, strict=True):
            try:
                thread.start()
            except RuntimeError:  # the interpreter is going down and starts no more threads (3.12 on)
                act(processor)
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


def setup(config: TelemetryConfig, *, role: str) -> Telemetry:
    """Start exporting this process's spans as ``[telemetry]`` and the standard ``OTEL_EXPORTER_OTLP_*`` variables say.

    ``role`` is "engine" or "worker" and stands on the resource. Call it after any fork or spawn, and once per engine;
    of several in one process, the last one that is not shut down gets the spans. Raises ``ConfigError``: a file that
    cannot be written, an endpoint that is no address, an exporter that is not installed.
    """
    from_environment = config.endpoint is None and any(os.environ.get(name) for name in _ENDPOINTS)
    if config.file is None and config.endpoint is None and not from_environment:
        return Telemetry([], None)

    from enginebay.telemetry import _provider, _sdk

    processors = _sdk.processors(config.file, config.endpoint, from_environment=from_environment)
    uninstall = _provider.install(_sdk.provider(role, processors))
    if uninstall is None:
        _sdk.share(_provider.global_provider(), processors)
    return Telemetry(processors, uninstall)

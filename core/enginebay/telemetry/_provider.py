"""Our global tracer provider: set once in a process, and delegating to whichever set-up is in force.

Decision. OpenTelemetry lets the global provider be set once; an engine can be opened, closed and opened again in one
process, each time with its own files. So the global one is a shell of ours, and what it delegates to is swapped.
When the application has set a provider of its own, it stays: our exporters are added to it, and see only our spans.
A violating change looks like: ``trace.set_tracer_provider(TracerProvider(...))`` in ``setup``; the second engine of a
process then logs "Overriding of current TracerProvider is not allowed" and exports nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.util.types import Attributes

_lock = threading.Lock()


class DelegatingProvider(trace.TracerProvider):
    """Gives tracers of the provider that was installed last and not removed; with none, tracers that do nothing."""

    def __init__(self) -> None:
        self._stack: list[trace.TracerProvider] = []
        self._tracers: dict[tuple[str, str | None, str | None], trace.Tracer] = {}
        self._nothing = trace.NoOpTracerProvider()

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        """A tracer; the same one until another provider is installed, since our callers ask at each span."""
        key = (instrumenting_module_name, instrumenting_library_version, schema_url)
        tracers = self._tracers  # a swap replaces the dict, so what is put in here is of the provider below
        if attributes is None and key in tracers:
            return tracers[key]
        stack = self._stack
        provider = stack[-1] if stack else self._nothing
        made = provider.get_tracer(*key, attributes)
        if attributes is None:
            with _lock:
                if tracers is self._tracers:
                    tracers[key] = made
        return made

    def push(self, provider: trace.TracerProvider) -> None:
        """Delegate to ``provider`` from now on."""
        with _lock:
            self._stack.append(provider)
            self._tracers = {}

    def remove(self, provider: trace.TracerProvider) -> None:
        """Delegate to it no more; the one before it is in force again. Harmless when it is not there."""
        with _lock:
            self._stack = [p for p in self._stack if p is not provider]
            self._tracers = {}


def global_provider() -> DelegatingProvider | trace.TracerProvider:
    """The process's provider: ours, set now if nobody has set one, or the application's."""
    current = trace.get_tracer_provider()
    if isinstance(current, trace.ProxyTracerProvider):  # the API's own: nobody has set one
        trace.set_tracer_provider(DelegatingProvider())
        current = trace.get_tracer_provider()
    return current


def install(provider: trace.TracerProvider) -> Callable[[], None] | None:
    """Make ``provider`` the one in force, and return what undoes that; None when the application has its own."""
    ours = global_provider()
    if not isinstance(ours, DelegatingProvider):
        return None
    ours.push(provider)
    return lambda: ours.remove(provider)

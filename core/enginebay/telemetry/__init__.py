"""Where spans go: providers, exporters, and the reader of trace files. The only user of OpenTelemetry's SDK.

``setup`` is called once per process by its front door, after any spawn. With nothing configured it imports no SDK,
starts no thread and costs nothing. Everybody else emits spans through ``enginebay.tracing``.
"""

from enginebay.telemetry._read import SpanEvent, SpanLink, SpanRecord, read_spans
from enginebay.telemetry._setup import Telemetry, setup
from enginebay.telemetry._tree import render_steps, render_tree

__all__ = [
    "SpanEvent",
    "SpanLink",
    "SpanRecord",
    "Telemetry",
    "read_spans",
    "render_steps",
    "render_tree",
    "setup",
]

"""Where spans go: providers, exporters, and the reader of trace files. The only user of OpenTelemetry's SDK.

``setup`` is called once per process by its front door, after any spawn. With nothing configured it imports no SDK,
starts no thread and costs nothing. Everybody else emits spans through ``enginebay.tracing``.
"""

from enginebay.telemetry._follow import Tail
from enginebay.telemetry._forest import forest
from enginebay.telemetry._live import WINDOW_SECONDS, Live
from enginebay.telemetry._page import page
from enginebay.telemetry._perfetto import perfetto
from enginebay.telemetry._read import SpanEvent, SpanLink, SpanRecord, read_spans
from enginebay.telemetry._setup import Telemetry, setup
from enginebay.telemetry._slowest import render_slowest, slowest
from enginebay.telemetry._summary import render_summary, summary
from enginebay.telemetry._tree import render_tree
from enginebay.telemetry._where import read_where, write_where

__all__ = [
    "WINDOW_SECONDS",
    "Live",
    "SpanEvent",
    "SpanLink",
    "SpanRecord",
    "Tail",
    "Telemetry",
    "forest",
    "page",
    "perfetto",
    "read_spans",
    "read_where",
    "render_slowest",
    "render_summary",
    "render_tree",
    "setup",
    "slowest",
    "summary",
    "write_where",
]

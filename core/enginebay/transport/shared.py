"""Shared-memory rings between the engine and its workers on one host.

The engine makes an ``EngineEnd``, puts ``ticket(rank)`` into each worker's start message and lets it inherit the
descriptors; the worker attaches a ``WorkerEnd`` and gives it to ``enginebay.worker.serve``. How it works: ring.py,
doorbell.py, memory.py, shared_layout.py, and docs/transport.md.
"""

from enginebay.transport.beat import Beat
from enginebay.transport.shared_engine import EngineEnd
from enginebay.transport.shared_worker import WorkerEnd

__all__ = ["Beat", "EngineEnd", "WorkerEnd"]

"""A worker in a process that may be killed: the spans of its start are out before it is called warm."""

from __future__ import annotations

from typing import Final

from enginebay.messages import Call, CompileOrWarmUpModel, Result, StartPayload
from enginebay.telemetry import Telemetry
from enginebay.worker.worker import Worker

__all__ = ["TracedWorker"]

_FLUSH: Final = 0.25
"""Seconds that a warm worker waits at most for its start's spans to be on their way."""


class TracedWorker(Worker):
    """For ``serve(…, make_worker=partial(TracedWorker, telemetry=…))``, with the telemetry of its process.

    Whoever dies in its first step has lost the spans of that step alone.
    """

    def __init__(self, payload: StartPayload, *, telemetry: Telemetry) -> None:
        super().__init__(payload)
        self._telemetry = telemetry

    def handle(self, call: Call, traceparent: str = "") -> Result:
        result = super().handle(call, traceparent)
        if isinstance(call, CompileOrWarmUpModel):
            self._telemetry.flush(_FLUSH)
        return result

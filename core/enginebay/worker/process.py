"""One worker in a process of its own: ``python -P -m enginebay.worker.process FD``.

FD is a pipe (or memfd) with a ``ProcessStart``. HELLO goes back before any plugin or torch is imported. Exit codes: 0
the worker was shut down or its line closed, 1 the parent has gone, 3 it could not be connected, 70 its line broke.
"""

from __future__ import annotations

import functools
import gc
import io
import logging
import os
import signal
import socket
import sys

from enginebay import tracing
from enginebay.config import EngineConfig
from enginebay.errors import one_line
from enginebay.messages import Call, CompileOrWarmUpModel, Result, StartPayload, WorkerInfo
from enginebay.telemetry import setup
from enginebay.transport import decode_start_payload
from enginebay.transport.shared import WorkerEnd
from enginebay.worker import process_guard as guard
from enginebay.worker.failure import describe_failure
from enginebay.worker.process_start import ProcessStart, Ready, read_start, say
from enginebay.worker.serve import serve
from enginebay.worker.start_spans import TracedWorker

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """The process's whole life; returns its exit code."""
    guard.ask_to_die_with_parent()
    try:
        (descriptor,) = arguments
        start = read_start(int(descriptor))
    except (OSError, ValueError) as error:
        print(f"enginebay.worker.process is started by an executor: {one_line(str(error))}", file=sys.stderr)  # noqa: T201  # nobody else would hear it
        return 3
    guard.check_parent(start.parent)
    guard.keep_to_itself(start.descriptors)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to handle
    guard.show_stacks_on_signal()
    guard.end_with(start.death)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe: what was printed must be out when the process dies
        sys.stdout.reconfigure(line_buffering=True)
    logging.basicConfig(level=start.log_level, format="%(levelname)s %(name)s: %(message)s")
    place = None
    try:
        guard.bind(start.cpus)
        payload = decode_start_payload(start.payload)
        place = payload.place
        channel = WorkerEnd.attach(start.ticket)
        say(start.ready, Ready(worker=_info(payload)))
    except Exception as error:
        say(start.ready, describe_failure(error, phase="start", rank=place.rank if place is not None else 0))
        return 3
    try:
        _work(start, payload, channel)
    except Exception:
        logging.getLogger("enginebay.worker").exception("rank %d: the worker ends", payload.place.rank)
        return 70
    finally:
        channel.close()
    return 0


def _work(start: ProcessStart, payload: StartPayload, channel: WorkerEnd) -> None:
    """Serve, with this process's spans on their way to where the engine's go."""
    telemetry = setup(EngineConfig.model_validate_json(payload.config).telemetry, role="worker")
    try:
        if start.spawned_ns and payload.traceparent:
            attributes = {tracing.RANK: payload.place.rank, tracing.PID: os.getpid()}
            with tracing.span(tracing.WORKER_SPAWN, attributes, parent=payload.traceparent, start_ns=start.spawned_ns):
                pass
        gc.disable()
        serve(start.payload, channel, make_worker=functools.partial(_OwnProcess, telemetry=telemetry))
    finally:
        telemetry.shutdown()


class _OwnProcess(TracedWorker):
    """A worker whose process begins and ends with it.

    What a framework's import makes, some hundred thousand objects, is not looked through for garbage: neither again and
    again while it is made, nor at the end, when all of it goes with the process.
    """

    def handle(self, call: Call, traceparent: str = "") -> Result:
        result = super().handle(call, traceparent)
        if isinstance(call, CompileOrWarmUpModel):
            gc.enable()
        return result

    def shutdown(self) -> None:
        gc.freeze()
        super().shutdown()


def _info(payload: StartPayload) -> WorkerInfo:
    return WorkerInfo(
        rank=payload.place.rank,
        local_rank=payload.place.local_rank,
        incarnation=payload.incarnation,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

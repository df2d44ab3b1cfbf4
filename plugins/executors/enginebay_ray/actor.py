"""What runs in the processes that Ray starts: the worker's loop on our own line, beside Ray's own threads.

Only bytes and text are passed through Ray, and this module imports neither Ray nor torch at its top.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from functools import partial
from typing import Final

import msgspec

from enginebay.messages import WorkerInfo
from enginebay.transport import decode_start_payload

__all__ = ["ActorStart", "RayWorker"]

_LONGEST_AFTERWARDS: Final = 3.0
"""Seconds that an actor lives on when its line has closed: what it has said last is with Ray long before."""


class ActorStart(msgspec.Struct, frozen=True, kw_only=True):
    """All that an actor is given: the worker's payload, its ticket for the line, and its environment.

    ``address`` is that of its node, "" where all are on one; ``patience`` the seconds that it may take to connect;
    ``own_devices`` are Ray's numbers of its devices, ``node_devices`` those of all ranks on its node, both with commas.
    """

    payload: bytes
    ticket: bytes
    environment: dict[str, str]
    address: str
    patience: float
    own_devices: str = ""
    node_devices: str = ""


class RayWorker:
    """One rank. ``serve`` runs as long as the worker does, and Ray tells at once when it cannot go on."""

    def devices(self) -> str:
        """Ray's numbers of this actor's GPUs, with commas; "" for none."""
        import ray

        return ",".join(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))

    def serve(self, start: bytes) -> str:
        """Be the worker until its line closes; "" after a good end, else the last lines of what went wrong."""
        given = msgspec.msgpack.decode(start, type=ActorStart)
        os.environ.update(given.environment)
        _search_only(os.environ.get("PYTHONPATH", "").split(os.pathsep))
        _see_devices(given.own_devices, given.node_devices)
        try:
            _work(given)
        except BaseException as error:  # whatever ends a worker is told as text: Ray would pickle the error itself
            return "\n".join(traceback.format_exception(error)[-1].strip().splitlines()[-5:])
        finally:
            _end_soon()
        return ""

    def stacks(self) -> str:
        """The stacks of all threads of this process."""
        lines = []
        for ident, frame in sys._current_frames().items():
            lines.append(f"thread {ident}:")
            lines += "".join(traceback.format_stack(frame)).splitlines()
        return "\n".join(lines)


def _end_soon() -> None:
    """The engine has Ray kill this process; if the engine or Ray's server has gone, nobody else ends it."""
    leave = threading.Timer(_LONGEST_AFTERWARDS, os._exit, (0,))
    leave.daemon = True
    leave.start()


def _work(given: ActorStart) -> None:
    from enginebay.config import EngineConfig
    from enginebay.runtime import pid_space
    from enginebay.telemetry import setup
    from enginebay.transport.socket import SocketChannel
    from enginebay.worker import serve
    from enginebay.worker.start_spans import TracedWorker

    payload = decode_start_payload(given.payload)
    info = WorkerInfo(
        rank=payload.place.rank,
        local_rank=payload.place.local_rank,
        incarnation=payload.incarnation,
        host=socket.gethostname(),
        pid=os.getpid(),
        address=given.address,
        space=pid_space(),
    )
    channel = SocketChannel.connect(given.ticket, info, time.monotonic() + given.patience)
    try:
        telemetry = setup(EngineConfig.model_validate_json(payload.config).telemetry, role="worker")
        try:
            serve(given.payload, channel, make_worker=partial(TracedWorker, telemetry=telemetry))
        finally:
            telemetry.shutdown()
    except BaseException as error:
        channel.close("".join(traceback.format_exception_only(error)).strip())
        raise
    channel.close()


def _see_devices(own: str, on_node: str) -> None:
    """Ray lets an actor see its own devices alone: see those of its node's ranks, whichever variable says it."""
    for name, value in list(os.environ.items()):
        if own and value == own and name.endswith(("VISIBLE_DEVICES", "DEVICE_SELECTOR", "VISIBLE_CORES")):
            os.environ[name] = on_node


def _search_only(named: list[str]) -> None:
    """Ray puts the engine's working directory on its workers' path: nothing is loaded from there unless PYTHONPATH
    names it. The engine's own PYTHONPATH comes first where the option ``env`` has brought it."""
    here = os.getcwd()
    first = [entry for entry in named if entry]
    others = [entry for entry in sys.path if entry and entry not in first and os.path.abspath(entry) != here]
    sys.path[:] = [*first, *others]

"""What runs in Dask's worker processes: one long task, which is one rank."""

from __future__ import annotations

import os
import socket
import time
import traceback

from enginebay.messages import WorkerInfo
from enginebay.transport import decode_start_payload
from enginebay.transport.socket import SocketChannel
from enginebay.worker import serve


def run(payload: bytes, ticket: bytes, patience: float) -> str:
    """Be the worker until the engine hangs up; "" after a good end, else what went wrong.

    ``patience``: seconds to connect in. Bytes go in and text comes out: Dask pickles nothing else of ours.
    """
    try:
        start = decode_start_payload(payload)
        info = WorkerInfo(
            rank=start.place.rank,
            local_rank=start.place.local_rank,
            incarnation=start.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        channel = SocketChannel.connect(ticket, info, time.monotonic() + patience)
        try:
            serve(payload, channel)
        finally:
            channel.close()
    except Exception as error:
        return "".join(traceback.format_exception_only(error)).strip()
    return ""

"""Lines between the engine and workers that it does not share memory with: ZeroMQ over TCP with CURVE, or in a folder.

::

    line = SocketLine({0: "incarnation"}, address="127.0.0.1", spawner=..., on_hello=..., on_reply=..., on_lost=...)
    line.tickets[0]                                   # secret bytes: by whatever way the executor reaches the worker
    channel = SocketChannel.connect(ticket, info, deadline)            # there
    serve(payload, channel)
"""

from enginebay.transport.beat import Beat
from enginebay.transport.socket_channel import SocketChannel
from enginebay.transport.socket_line import SocketLine

__all__ = ["Beat", "SocketChannel", "SocketLine"]

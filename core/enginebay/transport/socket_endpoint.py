"""Where the engine listens for its workers: a bound ROUTER, the tickets to it, and how all of it is given back."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import zmq

from enginebay.errors import StartFailed
from enginebay.transport.curve import Gate, KeyPair, new_keys, secure_server
from enginebay.transport.socket_wire import Ticket, limit

__all__ = ["Endpoint"]

_NO_KEYS = KeyPair(public=b"", secret=b"")


class Endpoint:
    """A socket of its own context, bound for the ranks whose ``routing_ids`` are given (rank → id).

    ``address`` is an IP address of this machine (TCP, CURVE, a free port), or a folder (a Unix socket of mode 0600).
    """

    def __init__(
        self, routing_ids: Mapping[int, bytes], address: str, heartbeat: float, record: Callable[[str, str], None]
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate: Gate | None = None
        self._path: Path | None = None
        self.router = self._context.socket(zmq.ROUTER)
        limit(self.router, heartbeat)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        server, keys = _NO_KEYS, dict.fromkeys(routing_ids, _NO_KEYS)
        if "/" not in address:
            server, keys = new_keys(), {rank: new_keys() for rank in routing_ids}
        try:
            if "/" in address:
                self._bind_in_folder(Path(address), record)
            else:
                self._bind_to_address(address, server, [pair.public for pair in keys.values()])
        except zmq.ZMQError as error:
            self.close()
            raise StartFailed(
                f"the engine cannot listen for its workers at {address}: {os.strerror(error.errno or 0)}; name an "
                "address of this machine, or a folder with a short path"
            ) from None
        endpoint = self.router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes), "libzmq tells an endpoint as text"
        self.address = endpoint.rstrip(b"\0").decode()
        self.tickets = tuple(
            msgspec.msgpack.encode(
                Ticket(
                    rank=rank,
                    address=self.address,
                    routing_id=routing_id,
                    heartbeat=heartbeat,
                    server_public=server.public,
                    public=keys[rank].public,
                    secret=keys[rank].secret,
                )
            )
            for rank, routing_id in routing_ids.items()
        )

    def close(self) -> None:
        """Everything that was taken; waits for the last words at most as long as the socket lets them linger."""
        self.router.close()
        if self._gate is not None:
            self._gate.close()
        self._context.term()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _bind_in_folder(self, folder: Path, record: Callable[[str, str], None]) -> None:
        self._path = folder / f"{secrets.token_hex(4)}.sock"
        record("socket", str(self._path))
        self.router.bind(f"ipc://{self._path}")
        self._path.chmod(0o600)

    def _bind_to_address(self, address: str, server: KeyPair, allowed: list[bytes]) -> None:
        self._gate = Gate(self._context, allowed)
        secure_server(self.router, server, self._gate)
        self.router.setsockopt(zmq.IPV6, int(":" in address))
        self.router.bind(f"tcp://[{address}]:*" if ":" in address else f"tcp://{address}:*")

"""Where the ranks of one group meet: a file when all are on one host, else a store that this process serves.

A new one for each generation, so that a rank of an older one can never join. PyTorch is imported here only when ranks
are on several hosts.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from enginebay.errors import StartFailed, one_line
from enginebay.messages import WorkerInfo, WorldPlan
from enginebay.runtime import Entropy

__all__ = ["ENV", "Rendezvous"]

ENV = "env"
"""For ranks that have an owner other than this engine: their world is in their environment."""


class Rendezvous:
    """Opens and closes the meeting places of one engine, one after the other.

    ``run_folder()`` is a folder of mode 0700 that is this engine's own; it is asked for when a file is needed.
    """

    def __init__(self, run_folder: Callable[[], Path], entropy: Entropy) -> None:
        self._run_folder = run_folder
        self._entropy = entropy
        self._file: Path | None = None
        self._store: Any = None

    def open(self, world: WorldPlan, workers: Sequence[WorkerInfo], generation: int) -> str:
        """Close the last one; where the ranks of this generation meet, as ``InitDevice`` says it.

        Raises ``StartFailed`` when no store can be served on this host.
        """
        self.close()
        if world.own_ranks is not None:
            return ENV
        if len(world.ranks) == 1:
            return ""
        number = self._entropy.stream("rendezvous").getrandbits(64)
        name = f"store-{generation}-{number:016x}"
        if len({worker.host for worker in workers}) <= 1 or not all(worker.address for worker in workers):
            self._file = self._run_folder() / name
            return self._file.as_uri()
        return self._serve(workers, name)

    def close(self) -> None:
        """Take it away: whoever comes late finds nothing. May be called again."""
        path, self._file = self._file, None
        self._store = None  # its server ends with its last reference
        if path is not None:
            with contextlib.suppress(FileNotFoundError):  # the last rank that left has removed it
                path.unlink()

    def _serve(self, workers: Sequence[WorkerInfo], prefix: str) -> str:
        address = _our_address(workers)
        # a store that is told an address listens on all of the machine's; a socket of ours is bound to that one alone
        try:
            listener = socket.create_server((address, 0), family=_family(address))
        except OSError as error:
            raise StartFailed(
                f"the ranks' store cannot listen on {address}: {error}; is it an address of this machine?"
            ) from error
        port = listener.getsockname()[1]
        try:
            from torch._C._distributed_c10d import TCPStore  # torch.distributed does not export it

            self._store = TCPStore(
                address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.fileno()
            )
        except Exception as error:  # no torch here, or one that cannot serve
            listener.close()
            raise StartFailed(
                f"the ranks' store could not be started: {one_line(f'{type(error).__name__}: {error}')}"
            ) from error
        listener.detach()  # the store closes it
        shown = f"[{address}]" if ":" in address else address
        return f"tcp://{shown}:{port}/{prefix}"


def _our_address(workers: Sequence[WorkerInfo]) -> str:
    """The address of this machine that reaches the workers' hosts: the one that packets to the farthest leave by."""
    here = socket.gethostname()
    for worker in workers:
        if worker.host == here:
            return worker.address
    with socket.socket(_family(workers[0].address), socket.SOCK_DGRAM) as probe:
        probe.connect((workers[0].address, 9))  # sends nothing; the kernel chooses the way
        return str(probe.getsockname()[0])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET

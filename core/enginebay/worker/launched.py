"""Where the ranks of a launcher's world meet: the store of the world that exists, or of the launcher's environment."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed does not export it

__all__ = ["launched_store", "numbered_store"]

_PREFIX: Final = "enginebay"
_lock = threading.Lock()
_opened: list[Store] = []
"""At most one: the launcher's meeting place is the process's, and an address is served once."""


def launched_store(timeout: float) -> Store:
    """The store, opened once in a process; ``timeout`` (seconds) bounds how long its server is waited for.

    It is that of the default group when the owner of the ranks has made one, else the one that MASTER_ADDR and
    MASTER_PORT name (torchrun serves it itself; under other launchers rank 0 does). Raises what torch raises when the
    server cannot be reached. All ranks call it at the same point of their programs.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.distributed_c10d import _get_default_store
    from torch.distributed.rendezvous import rendezvous

    with _lock:
        if not _opened:
            if dist.is_initialized():
                store: Store = _get_default_store()
            else:
                store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
            _opened.append(PrefixStore(_PREFIX, store))
        return _opened[0]


def numbered_store(what: str, rank: int, timeout: float) -> Store:
    """A store for one ``what`` ("world", "engine") alone: the n-th that one rank opens is the n-th of every other.

    The keys of an earlier one in the same process would lead to addresses where nobody listens any more.
    """
    from torch._C._distributed_c10d import PrefixStore

    store = launched_store(timeout)
    return PrefixStore(f"{what}-{store.add(f'{what}s-{rank}', 1)}", store)

"""How the engines of the ranks exchange bytes: through the launcher's store, beside the workers' collectives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from enginebay.errors import WorkerLost, one_line

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed does not export it

_LOG = logging.getLogger("enginebay.external_launcher")
_FIRST_LOOK: Final = 0.0002
_LONGEST_LOOK: Final = 0.02
_GRACE: Final = 2.0
"""How long a rank that has left may take to tell its last: its engine ends its workers first."""


class Meeting:
    """One engine's exchanges with its like on the other ranks, numbered: the n-th of each rank belong together."""

    def __init__(self, store: Store, rank: int, world_size: int, now: Callable[[], float]) -> None:
        """``store`` is this engine's own, the same one on every rank."""
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._now = now
        self._num_exchanges = 0
        self._last: str | None = None

    def exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        """Every rank's value, in rank order. Raises ``TimeoutError`` and ``WorkerLost`` naming who has not come."""
        try:
            return self._exchange(name, value, deadline)
        except RuntimeError as error:  # torch's, when nobody serves the store any more
            words = one_line(" ".join(str(error).split()), 200)
            raise WorkerLost(
                f"the launcher's store, in which the ranks compare their {name}, is gone: {words}"
            ) from error

    def leave(self) -> None:
        """Tell the others that this engine has ended, so that nobody waits for it."""
        try:
            self._store.set(f"left/{self._rank}", "1")
        except RuntimeError as error:
            _LOG.debug("nobody serves the launcher's store any more: %s", error)

    def _exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        number, self._num_exchanges = self._num_exchanges, self._num_exchanges + 1
        own = f"{number}/{self._rank}"
        self._store.set(own, value.hex())
        values = tuple(
            value if rank == self._rank else self._value_of(rank, number, name, deadline)
            for rank in range(self._world_size)
        )
        # whoever has come to this exchange has read all of the one before it
        if self._last is not None:
            self._store.delete_key(self._last)
        self._last = own
        return values

    def _value_of(self, rank: int, number: int, name: str, deadline: float) -> bytes:
        # looked for again and again: a blocking wait would hold the store's lock against the workers' own meetings
        key, pause = f"{number}/{rank}", _FIRST_LOOK
        left_by: float | None = None
        while not self._store.check([key]):
            now = self._now()
            if left_by is None and self._store.check([f"left/{rank}"]):
                left_by = now + _GRACE
            if left_by is not None and now > left_by:
                raise WorkerLost(f"the engine of rank {rank} has ended, and did not come to compare its {name}")
            if now > deadline:
                raise TimeoutError(f"rank {rank} has not come to compare its {name}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
        return bytes.fromhex(self._store.get(key).decode())

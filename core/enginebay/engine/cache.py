"""The KV cache in force, for those beside the scheduler: its reset, and what observers hear of its content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from enginebay.errors import EngineBusy
from enginebay.kvcache import CacheEventBatch, KVCacheManager

__all__ = ["CacheSeat"]


@final
class CacheSeat:
    """Where a group's cache is: each fresh scheduler brings a new one, which is empty.

    ``listener`` gets the events of each step; None: nobody listens, and caches need not keep any (``events``).
    ``replica`` is the group's number among those of the engine.
    """

    def __init__(self, listener: Callable[[CacheEventBatch], None] | None = None, *, replica: int = 0) -> None:
        self._listener = listener
        self._replica = replica
        self._manager: KVCacheManager | None = None
        self._step = self._generation = -1

    @property
    def events(self) -> bool:
        """Whether a cache is to keep what happens to its content."""
        return self._listener is not None

    def put(self, manager: KVCacheManager) -> KVCacheManager:
        """From now on it is this one."""
        self._manager = manager
        return manager

    @contextmanager
    def kept_of_failure(self) -> Iterator[None]:
        """What is put here meanwhile goes again when something is raised."""
        before = self._manager
        try:
            yield
        except BaseException:
            self._manager = before
            raise

    def tell(self, step: int, generation: int) -> None:
        """This step was committed: tell what happened since the last time, if anything did."""
        if self._listener is None:
            return
        self._step, self._generation = step, generation
        self._drain(self._listener)

    def reset(self) -> None:
        """Forget all cached content. Raises ``EngineBusy``, and changes nothing, while blocks are in use."""
        manager = self._manager
        if manager is None:  # a scheduler with a cache of its own, which nobody else knows
            return
        if not manager.reset():
            used = manager.num_blocks - manager.num_free_blocks
            raise EngineBusy(
                f"reset_prefix_cache is not safe while requests run: {used} of {manager.num_blocks} KV blocks are in "
                "use; drain first, or abort them"
            )
        if self._listener is not None:
            self._drain(self._listener)

    def _drain(self, listener: Callable[[CacheEventBatch], None]) -> None:
        events = () if self._manager is None else self._manager.drain_events()
        if events:
            listener(
                CacheEventBatch(step=self._step, generation=self._generation, events=events, replica=self._replica)
            )

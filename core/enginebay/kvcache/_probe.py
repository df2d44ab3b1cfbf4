"""The cache for those who may look and not touch: numbers, and how much of a request is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from enginebay.kvcache._manager import KVCacheManager


class Probed(Protocol):
    """What the probe reads of a request: enough for a policy's view of one."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...


@final
class KVCacheProbe:
    """A ``KVCacheView``: numbers and the probe, no way to change anything."""

    __slots__ = ("__manager",)

    def __init__(self, manager: KVCacheManager) -> None:
        self.__manager = manager

    @property
    def num_blocks(self) -> int:
        """Blocks that requests can hold."""
        return self.__manager.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self.__manager.num_free_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.__manager.block_size

    def cached_prefix_tokens(self, request: Probed) -> int:
        """How many leading tokens of the request are in the cache now. Changes nothing."""
        return self.__manager.cached_prefix_tokens(request)

"""The blocks of one request, as its owner and the manager see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

BlockIds = tuple[tuple[int, ...], ...]
"""Block ids, one tuple per KV-cache group."""

ExtraKeys = Callable[[int, int], bytes]
"""What the tokens from one position to another do not say (an image that they stand for), in bytes; b"": nothing."""

NEVER: Final = 1 << 62
"""A number of tokens that no request reaches."""


class PrefixHit(NamedTuple):
    """Cached blocks that begin a sequence, per group. ``num_idle`` of them nobody holds: free ones are used up by them.

    In a group with a window the blocks that no later token sees are the null block.
    """

    block_ids: BlockIds = ()
    num_tokens: int = 0
    num_idle: int = 0


@final
class KVSequence:
    """The blocks of one request. Made by ``KVCacheManager.open``; only the manager writes to it.

    ``prompt`` and ``output`` are the owner's own: it appends to ``output`` as tokens are committed. ``capacity`` is
    how many tokens the blocks held now have room for; ``publish_at`` the number of computed tokens at which the next
    block can be published, ``trim_at`` the one at which the next block falls out of a window.

    ``tables`` has the blocks of each group in order of the tokens that they hold, the null block for those that are
    given back, and is empty while none is held; ``starts`` the place of the first that is not, where there are
    windows. A request that waits has neither, nor names, nor a root.
    """

    __slots__ = (
        "adapter",
        "capacity",
        "extra_keys",
        "names",
        "output",
        "prompt",
        "publish_at",
        "request_id",
        "reuse",
        "root",
        "salt",
        "starts",
        "tables",
        "trim_at",
    )

    def __init__(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        output: list[int],
        salt: str = "",
        adapter: str = "",
        *,
        reuse: bool = True,
        extra_keys: ExtraKeys | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.output = output
        self.salt = salt
        self.adapter = adapter
        self.reuse = reuse
        self.extra_keys = extra_keys
        self.root = b""
        self.names: list[bytes] | None = None
        self.tables: tuple[list[int], ...] = ()
        self.starts: list[int] | None = None
        self.capacity = 0
        self.publish_at = 0
        self.trim_at = NEVER

    @property
    def num_tokens(self) -> int:
        """Prompt and committed tokens."""
        return len(self.prompt) + len(self.output)

    @property
    def blocks(self) -> list[int]:
        """The blocks of the first group."""
        return self.tables[0] if self.tables else []

    @property
    def block_ids(self) -> BlockIds:
        """The blocks in order of the tokens that they hold, per group."""
        return tuple(map(tuple, self.tables))

    @property
    def held(self) -> list[int]:
        """The blocks of all groups, in order of the tokens that they hold.

        A beginning that lacks a block of one group is of no use to the others, so those of like place are given back,
        and forgotten, together.
        """
        tables = self.tables
        if self.starts is None and len(tables) == 1:
            return tables[0]
        starts = self.starts or [0] * len(tables)
        return [
            table[index]
            for index in range(min(starts, default=0), max(map(len, tables), default=0))
            for table, start in zip(tables, starts, strict=True)
            if start <= index < len(table)
        ]

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Tokens ``start`` to ``end``, all of them known."""
        cut = len(self.prompt)
        if end <= cut:
            return self.prompt[start:end]
        if start >= cut:
            return self.output[start - cut : end - cut]
        return (*self.prompt[start:], *self.output[: end - cut])

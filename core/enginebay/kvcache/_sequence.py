"""The blocks of one request, as its owner and the manager see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

BlockIds = tuple[tuple[int, ...], ...]
"""Block ids, one tuple per KV-cache group."""


class PrefixHit(NamedTuple):
    """Cached blocks that begin a sequence. ``num_idle`` of them nobody holds: taking those uses up free blocks."""

    block_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    num_idle: int = 0


@final
class KVSequence:
    """The blocks of one request. Made by ``KVCacheManager.open``; only the manager writes to it.

    ``prompt`` and ``output`` are the owner's own: it appends to ``output`` as tokens are committed. ``capacity`` is
    how many tokens the blocks held now have room for; ``publish_at`` the number of computed tokens at which the next
    block can be published.
    """

    __slots__ = ("blocks", "capacity", "names", "output", "prompt", "publish_at", "request_id", "reuse", "root")

    def __init__(
        self, request_id: str, prompt: tuple[int, ...], output: list[int], root: bytes, *, reuse: bool = True
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.output = output
        self.root = root
        self.reuse = reuse
        self.names: list[bytes] = []
        self.blocks: list[int] = []
        self.capacity = 0
        self.publish_at = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and committed tokens."""
        return len(self.prompt) + len(self.output)

    @property
    def block_ids(self) -> BlockIds:
        """The blocks in order of the tokens that they hold, per group."""
        return (tuple(self.blocks),)

    def tokens(self, start: int, end: int) -> Sequence[int]:
        """Tokens ``start`` to ``end``, all of them known."""
        cut = len(self.prompt)
        if end <= cut:
            return self.prompt[start:end]
        if start >= cut:
            return self.output[start - cut : end - cut]
        return (*self.prompt[start:], *self.output[: end - cut])

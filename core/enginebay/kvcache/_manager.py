"""The manager: whose tokens lie in which blocks, and what can be found again.

One KV group for now, of full attention; block ids cross to others in one tuple per group all the same, so that groups
with a window can join without a change for those who call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, final

from enginebay.errors import ConfigError
from enginebay.kvcache._hashes import block_hash, root_hash
from enginebay.kvcache._pool import BlockPool
from enginebay.kvcache._sequence import BlockIds, KVSequence, PrefixHit


class _Probed(Protocol):
    """What the probe reads of a request: enough for a policy's view of one."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...


@final
class KVCacheManager:
    """Hands out the blocks of one KV cache, for one scheduler. Called from one thread.

    ``num_blocks`` counts all blocks of the device's cache, ``block_size`` is in tokens, and the first
    ``reserved_blocks`` ids are never handed out. ``weights`` names those that compute, and is part of every block's
    name; "": the model's own. It is also the ``KVCacheView`` that policies read; better give them
    ``view()``, through which nothing can be changed.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        reserved_blocks: int = 0,
        weights: str = "",
    ) -> None:
        if block_size < 1:
            raise ConfigError(f"[cache] block_size is {block_size}: a block holds at least one token")
        if num_blocks - reserved_blocks < 1 or reserved_blocks < 0:
            raise ConfigError(
                f"the KV cache has {num_blocks} blocks, of which {reserved_blocks} are reserved: none is left for "
                "requests. Give it more memory ([cache] memory_bytes or num_blocks)."
            )
        self._pool = BlockPool(num_blocks, reserved_blocks)
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self._weights = weights
        self._open: dict[str, KVSequence] = {}
        self.prefix_queries = 0
        self.prefix_hits = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that requests can hold; reserved ones are not among them."""
        return self._pool.num_usable

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds; what is cached in them can still be found."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that can be found by content."""
        return self._pool.num_cached

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def prefix_caching(self) -> bool:
        """Whether blocks are found again by content."""
        return self._prefix_caching

    @property
    def evictions(self) -> int:
        """Cached blocks that were handed out again, since the start."""
        return self._pool.evictions

    @property
    def pool(self) -> BlockPool:
        """The pool below, for tests and dumps."""
        return self._pool

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens need."""
        return -(-num_tokens // self._block_size)

    def open(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        output_token_ids: list[int],
        *,
        salt: str = "",
        adapter: str = "",
        reuse: bool = True,
    ) -> KVSequence:
        """Begin to keep a request; it holds no block yet. Requests share blocks of equal salt and adapter only.

        One without ``reuse`` computes every token itself: it finds nothing of others, and others find what it wrote.
        """
        root = _root(salt, adapter, self._weights)
        sequence = KVSequence(request_id, prompt_token_ids, output_token_ids, root, reuse=reuse)
        self._open[request_id] = sequence
        return sequence

    def lookup(self, sequence: KVSequence) -> PrefixHit:
        """The longest cached beginning, in full blocks. Changes nothing.

        Of a full hit the last token is left out: it must be computed again to draw the next one.
        """
        if not (self._prefix_caching and sequence.reuse):
            return PrefixHit()
        found: list[int] = []
        idle, pool = 0, self._pool
        for index in range((sequence.num_tokens - 1) // self._block_size):
            block = pool.find(self._name(sequence, index))
            if block is None:
                break
            found.append(block)
            idle += pool.refs(block) == 0
        return PrefixHit(tuple(found), len(found) * self._block_size, idle)

    def has_room(self, hit: PrefixHit, num_tokens: int, *, keep_free: int = 0) -> bool:
        """Whether a sequence that begins with ``hit`` can get blocks for ``num_tokens``, leaving ``keep_free`` free."""
        fresh = max(0, self.blocks_for(num_tokens) - len(hit.block_ids))
        return fresh + hit.num_idle + keep_free <= self._pool.num_free

    def allocate(self, sequence: KVSequence, hit: PrefixHit, num_tokens: int, *, count: bool = True) -> bool:
        """Give a sequence that holds nothing the blocks of ``hit``, and more until ``num_tokens`` have room.

        False, and nothing is changed, when too few are free. ``count``: whether the lookup enters the hit statistics
        (not when a request starts again: it would be counted twice).
        """
        assert not sequence.blocks, f"request {sequence.request_id} holds blocks already"
        if not self.has_room(hit, num_tokens):
            return False
        self._pool.share(hit.block_ids)  # before the rest is taken, which could evict them
        fresh = max(0, self.blocks_for(num_tokens) - len(hit.block_ids))
        sequence.blocks = [*hit.block_ids, *self._pool.take(fresh)]
        sequence.capacity = len(sequence.blocks) * self._block_size
        sequence.publish_at = hit.num_tokens + self._block_size
        if count and self._prefix_caching and sequence.reuse:
            self.prefix_queries += sequence.num_tokens
            self.prefix_hits += hit.num_tokens
        return True

    def extend(self, sequence: KVSequence, num_tokens: int) -> BlockIds | None:
        """More blocks, until ``num_tokens`` have room: the new ids per group, or None when too few are free."""
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return ()
        if missing > self._pool.num_free:
            return None
        taken = self._pool.take(missing)
        sequence.blocks += taken
        sequence.capacity += missing * self._block_size
        return (tuple(taken),)

    def publish(self, sequence: KVSequence, num_computed_tokens: int) -> None:
        """Let others find the full blocks of the first ``num_computed_tokens`` tokens.

        Called once the step that computed them is acknowledged: a block is never found before it was written.
        """
        while sequence.publish_at <= num_computed_tokens:
            index = sequence.publish_at // self._block_size - 1
            if self._prefix_caching:
                self._pool.publish(sequence.blocks[index], self._name(sequence, index))
            sequence.publish_at += self._block_size

    def free(self, sequence: KVSequence) -> None:
        """Take all blocks back. What was published can still be found; the sequence can be allocated again."""
        self._pool.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.capacity = 0
        sequence.publish_at = 0

    def close(self, sequence: KVSequence) -> None:
        """Take all blocks back and forget the request."""
        self.free(sequence)
        if self._open.get(sequence.request_id) is sequence:  # its id may have been given to a new request by now
            del self._open[sequence.request_id]

    def cached_prefix_tokens(self, request: _Probed) -> int:
        """How many leading tokens of the request are in the cache now. Changes nothing."""
        sequence = self._open.get(request.request_id)
        if sequence is None:
            sequence = KVSequence("", request.prompt_token_ids, [], _root("", "", self._weights))
        return self.lookup(sequence).num_tokens

    def reset(self) -> bool:
        """Forget all cached content (the weights changed). While blocks are in use: change nothing, and say False."""
        return self._pool.forget()

    def view(self) -> KVCacheProbe:
        """The same cache for those who may look and not touch."""
        return KVCacheProbe(self)

    def _name(self, sequence: KVSequence, index: int) -> bytes:
        """The name of full block ``index``; each is computed once in a request's life."""
        names = sequence.names
        while len(names) <= index:
            start = len(names) * self._block_size
            tokens = sequence.tokens(start, start + self._block_size)
            names.append(block_hash(names[-1] if names else sequence.root, tokens))
        return names[index]


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

    def cached_prefix_tokens(self, request: _Probed) -> int:
        """How many leading tokens of the request are in the cache now. Changes nothing."""
        return self.__manager.cached_prefix_tokens(request)


@lru_cache(maxsize=1024)
def _root(salt: str, adapter: str, weights: str) -> bytes:
    return root_hash(salt, adapter, weights) if weights else root_hash(salt, adapter)

"""The manager: whose tokens lie in which blocks, and what can be found again.

All groups share one pool: a block is of equal bytes in each, and is of the group that it was handed out for until it
comes back. Counts fixed per group would have to guess how long requests are: short ones fill the blocks of a window and
leave the others idle, long ones do the reverse, and whichever runs out first ends admission. In one pool there is one
number of free blocks, one order of eviction, and a watermark and an admission check that mean the same as with one
group. What it asks of a runner: groups of equal size in bytes, as layers of one shape dealt out evenly are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from enginebay.errors import ConfigError
from enginebay.kvcache._events import CacheEvent, EventLog
from enginebay.kvcache._names import Names, suffix_of
from enginebay.kvcache._pool import BlockPool
from enginebay.kvcache._prefix import common_blocks
from enginebay.kvcache._probe import KVCacheProbe, Probed
from enginebay.kvcache._sequence import NEVER, BlockIds, ExtraKeys, KVSequence, PrefixHit
from enginebay.kvcache._shape import NULL_BLOCK, CacheShape, GroupSpec


@final
class KVCacheManager:
    """Hands out the blocks of one KV cache, for one scheduler. Called from one thread.

    ``num_blocks`` counts all blocks of the device's cache, ``block_size`` is in tokens, and the first
    ``reserved_blocks`` ids are never handed out. ``groups``: none means one that sees everything;
    ``max_step_tokens`` is as in ``CacheShape``. ``weights`` names those that compute and ``layout`` what else gives
    keys and values other bits; both are part of every block's name; "": the model's own. ``events``: whether what
    happens to the content is kept for ``drain_events``. It is also the ``KVCacheView`` that policies read; better give
    them ``view()``, through which nothing can be changed.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        reserved_blocks: int = 0,
        weights: str = "",
        layout: str = "",
        groups: Sequence[GroupSpec] = (),
        max_step_tokens: int | None = None,
        events: bool = False,
    ) -> None:
        self.shape = CacheShape(tuple(groups) or (GroupSpec(block_size),), max_step_tokens)
        assert self.shape.block_size == block_size, "the groups' blocks are of another size than the cache's"
        reserved = self.shape.reserved(reserved_blocks)
        if num_blocks - reserved < len(self.shape.groups) or reserved_blocks < 0:
            raise ConfigError(
                f"the KV cache has {num_blocks} blocks, of which {reserved} are reserved: none is left for "
                "requests. Give it more memory ([cache] memory_bytes or num_blocks)."
            )
        self._log = EventLog() if events else None
        self._pool = BlockPool(num_blocks, reserved, self._log)
        self._block_size = block_size
        self._groups = self.shape.groups
        self._suffixes = tuple(suffix_of(place) for place in range(len(self._groups)))
        self._windowed = tuple((place, group) for place, group in enumerate(self._groups) if group.window is not None)
        self._prefix_caching = prefix_caching
        self._names = Names(block_size, f"{weights}\n{layout}" if layout else weights)
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
        """Blocks of one group that so many tokens need."""
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
        extra_keys: ExtraKeys | None = None,
    ) -> KVSequence:
        """Begin to keep a request; it holds no block yet, and nothing is hashed.

        Requests share blocks of equal salt, adapter and ``extra_keys`` only. One without ``reuse`` computes every token
        itself: it finds nothing of others, and others find what it wrote.
        """
        prompt, output = prompt_token_ids, output_token_ids
        sequence = KVSequence(request_id, prompt, output, salt, adapter, reuse=reuse, extra_keys=extra_keys)
        self._open[request_id] = sequence
        return sequence

    def lookup(self, sequence: KVSequence) -> PrefixHit:
        """The longest cached beginning that every group can go on from, in full blocks. Changes nothing.

        Of a full hit the last token is left out: it must be computed again to draw the next one.
        """
        if not (self._prefix_caching and sequence.reuse):
            return PrefixHit()
        most, pool = (sequence.num_tokens - 1) // self._block_size, self._pool
        if len(self._groups) > 1 or self._windowed:
            return self._lookup_in_groups(sequence, most)
        found: list[int] = []
        idle, names = 0, sequence.names or ()
        for index in range(most):
            if index >= len(names):  # one after the other: what comes after a miss need not be hashed
                names = self._names.until(sequence, index + 1)
            block = pool.find(names[index])
            if block is None:
                break
            found.append(block)
            idle += pool.refs(block) == 0
        return PrefixHit((tuple(found),), len(found) * self._block_size, idle) if found else PrefixHit()

    def has_room(self, hit: PrefixHit, num_tokens: int, *, keep_free: int = 0) -> bool:
        """Whether a sequence that begins with ``hit`` can get blocks for ``num_tokens``, leaving ``keep_free`` free."""
        return sum(self.shape.fresh(hit.num_tokens, num_tokens)) + hit.num_idle + keep_free <= self._pool.num_free

    def allocate(self, sequence: KVSequence, hit: PrefixHit, num_tokens: int, *, count: bool = True) -> bool:
        """Give a sequence that holds nothing the blocks of ``hit``, and more until ``num_tokens`` have room.

        In a group with a window, no more than a request ever holds at once. False, and nothing is changed, when too few
        are free. ``count``: whether the lookup enters the hit statistics (not when a request starts again: it would be
        counted twice).
        """
        assert not sequence.tables, f"request {sequence.request_id} holds blocks already"
        fresh, pool = self.shape.fresh(hit.num_tokens, num_tokens), self._pool
        if sum(fresh) + hit.num_idle > pool.num_free:
            return False
        hits = hit.block_ids or ((),) * len(fresh)
        starts = [group.first_seen(hit.num_tokens) for group in self._groups] if self._windowed else None
        for place, ids in enumerate(hits):  # before the rest is taken, which could evict them
            pool.share(ids if starts is None else ids[starts[place] :])
        sequence.tables = tables = tuple([*ids, *pool.take(more)] for ids, more in zip(hits, fresh, strict=True))
        sequence.capacity = min(map(len, tables)) * self._block_size
        sequence.publish_at = hit.num_tokens + self._block_size
        if starts is not None:
            sequence.starts = starts
            sequence.trim_at = self._next_trim(starts)
        if count and self._prefix_caching and sequence.reuse:
            self.prefix_queries += sequence.num_tokens
            self.prefix_hits += hit.num_tokens
        return True

    def extend(self, sequence: KVSequence, num_tokens: int) -> BlockIds | None:
        """More blocks, until ``num_tokens`` have room: the new ids per group, or None when too few are free."""
        if num_tokens <= sequence.capacity:
            return ()
        every, pool, tables = -(-num_tokens // self._block_size), self._pool, sequence.tables
        if len(tables) == 1:  # as with most models, and once per request and block
            missing = every - len(tables[0])
            if missing > pool.num_free:
                return None
            taken = pool.take(missing)
            tables[0].extend(taken)
            sequence.capacity += missing * self._block_size
            return (tuple(taken),)
        counts = [max(0, every - len(table)) for table in tables]
        if sum(counts) > pool.num_free:
            return None
        added = tuple(tuple(pool.take(count)) for count in counts)
        for table, ids in zip(tables, added, strict=True):
            table.extend(ids)
        sequence.capacity = min(map(len, tables)) * self._block_size
        return added

    def publish(self, sequence: KVSequence, num_computed_tokens: int) -> None:
        """Let others find the full blocks of the first ``num_computed_tokens`` tokens.

        Called once the step that computed them is acknowledged: a block is never found before it was written.
        """
        first, end = sequence.publish_at // self._block_size - 1, num_computed_tokens // self._block_size
        if end <= first:
            return
        sequence.publish_at = (end + 1) * self._block_size
        if not self._prefix_caching:
            return
        publish, log, starts = self._pool.publish, self._log, sequence.starts
        names = self._names.until(sequence, end)
        for place, table in enumerate(sequence.tables):
            suffix, begin = self._suffixes[place], first if starts is None else max(first, starts[place])
            if log is None:
                for index in range(begin, end):
                    publish(table[index], names[index] + suffix)
            elif stored := [index for index in range(begin, end) if publish(table[index], names[index] + suffix)]:
                log.stored(names, sequence.root, stored, self._block_size, place)

    def trim(self, sequence: KVSequence, num_computed_tokens: int) -> None:
        """Take back the blocks that no token after the first ``num_computed_tokens`` sees; in the table the null block
        stands in their place.

        Called once the step that computed them is acknowledged, after ``publish``: what was published can still be
        found. Of use from ``sequence.trim_at`` on.
        """
        if num_computed_tokens < sequence.trim_at:
            return
        starts = sequence.starts
        assert starts is not None, "a sequence without windows is never to be trimmed"
        for place, group in self._windowed:
            table, begin = sequence.tables[place], starts[place]
            end = min(group.first_seen(num_computed_tokens), len(table))
            if end > begin:
                dead = table[begin:end]
                table[begin:end] = [NULL_BLOCK] * len(dead)
                self._pool.give_back(dead)
                starts[place] = end
        sequence.trim_at = self._next_trim(starts)

    def free(self, sequence: KVSequence) -> None:
        """Take all blocks back. What was published can still be found; the sequence can be allocated again."""
        self._pool.give_back(sequence.held)
        sequence.tables = ()
        sequence.starts = None
        sequence.capacity = 0
        sequence.publish_at = 0
        sequence.trim_at = NEVER

    def close(self, sequence: KVSequence) -> None:
        """Take all blocks back and forget the request."""
        self.free(sequence)
        if self._open.get(sequence.request_id) is sequence:  # its id may have been given to a new request by now
            del self._open[sequence.request_id]

    def cached_prefix_tokens(self, request: Probed) -> int:
        """How many leading tokens of the request are in the cache now. Changes nothing."""
        sequence = self._open.get(request.request_id)
        if sequence is None:
            sequence = KVSequence("", request.prompt_token_ids, [])
        return self.lookup(sequence).num_tokens

    def reset(self) -> bool:
        """Forget all cached content (the weights changed). While blocks are in use: change nothing, and say False."""
        return self._pool.forget()

    def drain_events(self) -> tuple[CacheEvent, ...]:
        """What happened to the cached content since the last call, in order; always () unless made with ``events``."""
        return () if self._log is None else self._log.drain()

    def view(self) -> KVCacheProbe:
        """The same cache for those who may look and not touch."""
        return KVCacheProbe(self)

    def _lookup_in_groups(self, sequence: KVSequence, most: int) -> PrefixHit:
        pool, suffixes = self._pool, self._suffixes

        def find(place: int, index: int) -> int | None:
            return pool.find(self._names.until(sequence, index + 1)[index] + suffixes[place])

        count = common_blocks(self._groups, most, find)
        if not count:
            return PrefixHit()
        tables, idle = [], 0
        for place, group in enumerate(self._groups):
            start = group.first_seen(count * self._block_size)
            found = [block for index in range(start, count) if (block := find(place, index)) is not None]
            idle += sum(pool.refs(block) == 0 for block in found)
            tables.append((*(NULL_BLOCK,) * start, *found))
        return PrefixHit(tuple(tables), count * self._block_size, idle)

    def _next_trim(self, starts: Sequence[int]) -> int:
        """The number of computed tokens at which the next block falls out of a window."""
        return min((starts[place] + 1) * self._block_size + (group.window or 0) - 1 for place, group in self._windowed)

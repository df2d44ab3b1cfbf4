"""How many KV-cache blocks there will be, and the longest request that they can hold. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.config import CacheConfig
from enginebay.errors import CapabilityError, ConfigError, OutOfMemory
from enginebay.kvcache import CacheShape, GroupSpec
from enginebay.messages import KVCacheSpec, MemoryAvailable

__all__ = ["BlockBudget", "block_budget", "longest_request"]


@dataclass(frozen=True, kw_only=True)
class BlockBudget:
    """Blocks that the KV groups share on every rank, reserved ones included, and why so many.

    ``shape``: the groups; None: one that sees everything.
    """

    num_blocks: int
    reserved_blocks: int
    why: str
    shape: CacheShape | None = None

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The groups; none: one that sees everything."""
        return () if self.shape is None else self.shape.groups

    @property
    def max_step_tokens(self) -> int | None:
        """See ``CacheShape``; without windows it means nothing."""
        return None if self.shape is None else self.shape.max_step_tokens


def block_budget(
    cache: CacheConfig,
    specs: Sequence[KVCacheSpec],
    memory: Sequence[MemoryAvailable],
    *,
    reserved_blocks: int,
    max_num_seqs: int,
    max_model_len: int,
    max_step_tokens: int | None = None,
) -> BlockBudget:
    """The fewest blocks of all ranks; when nothing is set, no more than ``max_num_seqs`` longest requests can use.

    ``specs`` and ``memory`` are in rank order; ``max_step_tokens`` is as in ``CacheShape``. Raises ``CapabilityError``
    when the ranks' caches do not go together, ``OutOfMemory`` when not one block fits.
    """
    shape = _shape(specs, max_step_tokens)
    reserved = shape.reserved(max(reserved_blocks, *(spec.reserved_blocks for spec in specs)))

    def budget(num_blocks: int, why: str) -> BlockBudget:
        own = None if len(shape.groups) == 1 and not shape.has_windows else shape
        return BlockBudget(num_blocks=num_blocks, reserved_blocks=reserved, why=why, shape=own)

    fixed = [spec.num_blocks for spec in specs if spec.num_blocks is not None]
    if fixed:
        if cache.num_blocks is not None and cache.num_blocks != min(fixed):
            raise CapabilityError(f"[cache] num_blocks = {cache.num_blocks}, but the runner fixes it at {min(fixed)}")
        return budget(min(fixed), "fixed by the runner")
    if cache.num_blocks is not None:
        return budget(cache.num_blocks, "[cache] num_blocks")
    sizes = [spec.cost_per_block for spec in specs]
    affordable = min(m.kv_cache_bytes // max(1, size) for m, size in zip(memory, sizes, strict=True))
    needed = max_num_seqs * shape.most_blocks(max_model_len) + reserved
    unset = cache.memory_bytes is None and cache.memory_utilization is None
    if unset and needed < affordable:
        why = f"what max_num_seqs = {max_num_seqs} requests of max_model_len = {max_model_len} tokens can use"
        return budget(needed, why)
    if affordable <= reserved:
        raise OutOfMemory(
            f"the KV cache may take {min(m.kv_cache_bytes for m in memory)} bytes, and a block takes {max(sizes)} "
            f"({reserved} are reserved): not one request fits; give [cache] memory_bytes more, or free memory"
        )
    why = "[cache] memory_bytes" if cache.memory_bytes is not None else "[cache] memory_utilization"
    return budget(affordable, "a share of the free memory" if unset else why)


def _shape(specs: Sequence[KVCacheSpec], max_step_tokens: int | None) -> CacheShape:
    """The groups, which every rank must have alike."""
    sizes = sorted({group.block_size for spec in specs for group in spec.groups})
    if len(sizes) > 1:
        raise CapabilityError(f"the KV groups have blocks of {sizes} tokens; this version needs one size")
    seen = [[(group.kind, group.window) for group in spec.groups] for spec in specs]
    for rank, groups in enumerate(seen):
        if groups != seen[0]:
            raise CapabilityError(
                f"rank {rank} has the KV groups {_named(groups)}, and rank 0 has {_named(seen[0])}: a runner's "
                "kv_cache_spec names the same groups on every rank, those without layers there included"
            )
    try:
        return CacheShape(
            tuple(GroupSpec.of(block_size=sizes[0], kind=kind, window=window) for kind, window in seen[0]),
            max_step_tokens,
        )
    except ConfigError as error:
        raise CapabilityError(f"the runner's kv_cache_spec cannot be kept: {error}") from error


def _named(groups: Sequence[tuple[str, int | None]]) -> str:
    return ", ".join(kind if window is None else f"{kind} {window}" for kind, window in groups) or "none"


def longest_request(
    budget: BlockBudget, *, block_size: int, max_model_len: int, explicit: bool
) -> tuple[int, str | None]:
    """The longest request in tokens, and a sentence when that is less than ``max_model_len``.

    Raises ``CapabilityError`` when ``max_model_len`` was set by the user (``explicit``) and does not fit.
    """
    shape = budget.shape or CacheShape((GroupSpec(block_size),))
    tokens = shape.most_tokens(budget.num_blocks - budget.reserved_blocks, max_model_len)
    if tokens >= max_model_len:
        return max_model_len, None
    if tokens < 1:
        raise CapabilityError(
            f"the KV cache has {budget.num_blocks} blocks ({budget.why}), and {budget.reserved_blocks} are reserved: "
            "none is left for requests; raise [cache] num_blocks"
        )
    numbers = f"{budget.num_blocks - budget.reserved_blocks} blocks of {block_size} tokens ({budget.why})"
    if explicit:
        raise CapabilityError(
            f"[model] max_model_len = {max_model_len} does not fit: the KV cache has {numbers}, enough for {tokens} "
            f"tokens; lower max_model_len to {tokens}, or give [cache] more"
        )
    return (
        tokens,
        f"the longest request is {tokens} tokens: the KV cache has {numbers}, the model takes {max_model_len}",
    )

"""How many KV-cache blocks there will be, and the longest request that they can hold. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.config import CacheConfig
from enginebay.errors import CapabilityError, OutOfMemory
from enginebay.messages import KVCacheSpec, MemoryAvailable

__all__ = ["BlockBudget", "block_budget", "longest_request"]


@dataclass(frozen=True, kw_only=True)
class BlockBudget:
    """Blocks of each KV group on every rank, reserved ones included, and why so many."""

    num_blocks: int
    reserved_blocks: int
    why: str


def block_budget(
    cache: CacheConfig,
    specs: Sequence[KVCacheSpec],
    memory: Sequence[MemoryAvailable],
    *,
    reserved_blocks: int,
    max_num_seqs: int,
    max_model_len: int,
) -> BlockBudget:
    """The fewest blocks of all ranks; when nothing is set, no more than ``max_num_seqs`` longest requests can use.

    ``specs`` and ``memory`` are in rank order. Raises ``CapabilityError`` when the ranks' caches do not go together,
    ``OutOfMemory`` when not one block fits.
    """
    reserved = max(reserved_blocks, *(spec.reserved_blocks for spec in specs))
    fixed = [spec.num_blocks for spec in specs if spec.num_blocks is not None]
    block_sizes = {group.block_size for spec in specs for group in spec.groups}
    if len(block_sizes) != 1:
        raise CapabilityError(f"the KV groups have blocks of {sorted(block_sizes)} tokens; this version needs one size")
    if fixed:
        if cache.num_blocks is not None and cache.num_blocks != min(fixed):
            raise CapabilityError(f"[cache] num_blocks = {cache.num_blocks}, but the runner fixes it at {min(fixed)}")
        return BlockBudget(num_blocks=min(fixed), reserved_blocks=reserved, why="fixed by the runner")
    if cache.num_blocks is not None:
        return BlockBudget(num_blocks=cache.num_blocks, reserved_blocks=reserved, why="[cache] num_blocks")
    sizes = [sum(group.bytes_per_block for group in spec.groups) for spec in specs]
    affordable = min(m.kv_cache_bytes // max(1, size) for m, size in zip(memory, sizes, strict=True))
    needed = max_num_seqs * -(-max_model_len // block_sizes.pop()) + reserved
    unset = cache.memory_bytes is None and cache.memory_utilization is None
    if unset and needed < affordable:
        return BlockBudget(
            num_blocks=needed,
            reserved_blocks=reserved,
            why=f"what max_num_seqs = {max_num_seqs} requests of max_model_len = {max_model_len} tokens can use",
        )
    if affordable <= reserved:
        raise OutOfMemory(
            f"the KV cache may take {min(m.kv_cache_bytes for m in memory)} bytes, and a block takes {max(sizes)} "
            f"({reserved} are reserved): not one request fits; give [cache] memory_bytes more, or free memory"
        )
    why = "[cache] memory_bytes" if cache.memory_bytes is not None else "[cache] memory_utilization"
    return BlockBudget(num_blocks=affordable, reserved_blocks=reserved, why="the free memory" if unset else why)


def longest_request(
    budget: BlockBudget, *, block_size: int, max_model_len: int, explicit: bool
) -> tuple[int, str | None]:
    """The longest request in tokens, and a sentence when that is less than ``max_model_len``.

    Raises ``CapabilityError`` when ``max_model_len`` was set by the user (``explicit``) and does not fit.
    """
    tokens = (budget.num_blocks - budget.reserved_blocks) * block_size
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

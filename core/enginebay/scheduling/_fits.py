"""Whether a request can ever run to its end: asked once, when it is added, so that nothing waits for ever."""

from __future__ import annotations

from typing import Protocol

from enginebay.errors import RequestTooLong
from enginebay.interfaces import BatchConstraints, SchedulerLimits
from enginebay.kvcache import CacheShape
from enginebay.scheduling._bounds import UNBOUNDED, Bounds


class _Blocks(Protocol):
    @property
    def num_blocks(self) -> int: ...
    @property
    def shape(self) -> CacheShape: ...


_NO_CONSTRAINTS = BatchConstraints()


def check_fits(
    num_prompt_tokens: int,
    max_tokens: int,
    limits: SchedulerLimits,
    kv: _Blocks,
    constraints: BatchConstraints = _NO_CONSTRAINTS,
) -> None:
    """Raise ``RequestTooLong``, with all the numbers, when such a request could not finish even alone.

    The last token is drawn and never computed, so the most tokens that a request has in the cache at once is one less
    than its prompt plus its output. A preempted or recovered request computes all of them again.
    """
    if num_prompt_tokens >= limits.max_model_len:
        raise RequestTooLong(
            f"the prompt has {num_prompt_tokens} tokens, and a request may have {limits.max_model_len} with its "
            f"output (max_model_len): shorten the prompt to {limits.max_model_len - 1} tokens or fewer",
            param="prompt",
        )
    total = min(num_prompt_tokens + max_tokens, limits.max_model_len)
    most = total - 1
    bounds = Bounds.join(limits, constraints, kv.num_blocks)
    what = f"the prompt has {num_prompt_tokens} tokens and its output up to {total - num_prompt_tokens}"
    blocks = kv.shape.most_blocks(most)
    if blocks > kv.num_blocks:
        raise RequestTooLong(
            f"{what}: that needs {blocks} KV blocks of {kv.shape.block_size} tokens, and the cache has "
            f"{kv.num_blocks}. Ask for {_room(kv.shape.most_tokens(kv.num_blocks, most))} tokens or fewer in all, or "
            "give the engine a larger cache ([cache] memory_bytes or num_blocks)",
            param="max_tokens",
        )
    if bounds.context != UNBOUNDED and most > bounds.context:
        raise RequestTooLong(
            f"{what}: the runner takes {bounds.context} tokens of context in a batch (max_batch_context_tokens). "
            f"Ask for {_room(bounds.context)} tokens or fewer in all",
            param="max_tokens",
        )
    if not bounds.chunked and most > bounds.tokens:
        raise RequestTooLong(
            f"{what}: without chunked prefill all of it must fit one step of {bounds.tokens} tokens "
            "(max_num_batched_tokens), since a request that starts again computes its output again too. "
            f"Ask for {_room(bounds.tokens)} tokens or fewer in all, or raise [scheduler] max_num_batched_tokens",
            param="max_tokens",
        )


def _room(computed: int) -> int:
    return computed + 1

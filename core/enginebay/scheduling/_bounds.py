"""The bounds of every step: the config's limits and the runner's constraints, each joined to the tighter one."""

from __future__ import annotations

from dataclasses import dataclass

from enginebay.errors import CapabilityError
from enginebay.interfaces import BatchConstraints, SchedulerLimits

UNBOUNDED = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What the mechanics keep in each step; ``watermark`` is in blocks, the rest as in the two that it is made of."""

    tokens: int
    seqs: int
    context: int
    prefills: int
    prefill_streak: int
    chunked: bool
    multiple: int
    long_prefill: int
    mixed: bool
    whole_prompt: bool
    no_evict: bool
    watermark: int
    prefix_caching: bool
    proposals: int

    @classmethod
    def join(cls, limits: SchedulerLimits, constraints: BatchConstraints, num_blocks: int) -> Bounds:
        """Join both; raises ``CapabilityError`` when no prompt could ever run."""
        bounds = cls(
            tokens=min(limits.max_num_batched_tokens, _or_none(constraints.max_num_batched_tokens)),
            seqs=min(limits.max_num_seqs, _or_none(constraints.max_num_seqs)),
            context=_or_none(constraints.max_batch_context_tokens),
            prefills=_or_none(constraints.max_prefills_per_step),
            prefill_streak=_or_none(constraints.max_consecutive_prefill_steps),
            chunked=limits.chunked_prefill and constraints.chunked_prefill,
            multiple=constraints.chunk_multiple,
            long_prefill=limits.long_prefill_token_threshold,
            mixed=constraints.mixed_prefill_decode,
            whole_prompt=limits.reserve_whole_prompt,
            no_evict=limits.no_evict,
            watermark=int(limits.watermark * num_blocks),
            prefix_caching=constraints.prefix_caching,
            proposals=constraints.max_tokens_per_step - 1,
        )
        if bounds.chunked and bounds.multiple > bounds.tokens:
            raise CapabilityError(
                f"the runner takes chunks of {bounds.multiple} tokens, and a step holds {bounds.tokens}: "
                f"set [scheduler] max_num_batched_tokens to {bounds.multiple} or more"
            )
        return bounds

    def chunk(self, start: int, todo: int, *, tokens_left: int, context_left: int, others_wait: bool) -> int:
        """How many of ``todo`` tokens to prefill now, after the ``start`` that are there: 0 when none may be."""
        size = min(todo, tokens_left, context_left - start)
        if not self.chunked:
            return todo if size == todo else 0
        if others_wait and self.long_prefill:
            size = min(size, max(self.long_prefill, self.multiple))
        if size < todo:
            size -= size % self.multiple
        return max(size, 0)


def _or_none(bound: int | None) -> int:
    return UNBOUNDED if bound is None else bound

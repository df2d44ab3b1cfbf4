"""The test of the whole at warm-up: logits are the same bits alone, batched, in chunks and prefilled again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from enginebay.errors import CapabilityError

__all__ = ["Part", "check_whole"]

_SEQUENCES = 3
_PROMPT, _DECODED = 21, 2
_CHUNKS = (5, 13)


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one sequence, from position ``start`` on, with its blocks."""

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]


Run = Callable[[Sequence[Part]], torch.Tensor]
"""One step: the logits of each part's last token, ``[parts, vocab_size]``."""


def check_whole(run: Run, *, vocab_size: int, num_blocks: int, block_size: int, max_model_len: int) -> None:
    """Raises ``CapabilityError`` with the first thing that changes a bit. A cache too small holds fewer, shorter ones.

    Uses the cache's first blocks, whose contents are cleared when a request enters them.
    """
    length = min(_PROMPT + _DECODED, max_model_len, num_blocks * block_size)
    each = -(-length // block_size)
    count = min(_SEQUENCES, num_blocks // each)
    draws = torch.Generator().manual_seed(2)
    texts = torch.randint(vocab_size, (count, length), generator=draws).tolist()
    blocks = [range(index * each, (index + 1) * each) for index in range(count)]

    def part(index: int, start: int, stop: int) -> Part:
        return Part(start, texts[index][start:stop], blocks[index])

    prompt = max(1, length - _DECODED)
    ends = range(prompt, length + 1)
    alone = {(index, end): run([part(index, 0, end)])[0] for index in range(count) for end in ends}

    def compare(what: str, end: int, logits: torch.Tensor, indexes: Sequence[int]) -> None:
        for index, row in zip(indexes, logits, strict=True):
            if not torch.equal(row, alone[index, end]):
                gap = float((row.float() - alone[index, end].float()).abs().max())
                raise CapabilityError(
                    f"[engine] batch_invariant cannot be kept: {what} changes logits by {gap:.1e} at position {end}. "
                    "Try another [worker] threads or [model] dtype, or turn the mode off."
                )

    every = range(count)
    compare("a batch", prompt, run([part(index, 0, prompt) for index in every]), every)
    for end in range(prompt + 1, length + 1):
        compare("decoding in a batch", end, run([part(index, end - 1, end) for index in every]), every)
    for size in _CHUNKS:
        logits = alone[0, prompt].unsqueeze(0)
        for start in range(0, prompt, size):
            logits = run([part(0, start, min(start + size, prompt))])
        compare(f"a prompt in chunks of {size}", prompt, logits, [0])
    if count > 1 and prompt < length:  # sequence 0 has just been computed up to its prompt's end
        mixed = run([part(0, prompt, prompt + 1), part(1, 0, prompt)])
        compare("a step of both kinds", prompt + 1, mixed[:1], [0])
        compare("a step of both kinds", prompt, mixed[1:], [1])

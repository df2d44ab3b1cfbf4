"""Steps that no request asked for: the largest that may come, and a short one."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.messages import SamplingParams
from enginebay.worker.table import Row, ScheduledRow
from enginebay_runner_v2.rows import Rows, StepInputs

__all__ = ["largest_step", "short_step"]


def largest_step(
    groups: int, *, block_size: int, max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int, drawn: int
) -> tuple[StepInputs, int]:
    """A prompt as long as the budget allows beside as many others as may run, of each of which ``drawn`` tokens are
    computed; and the blocks that it takes."""
    rows = max(1, min(max_num_seqs, max_num_batched_tokens // drawn))
    longest = min(max_model_len, max_num_batched_tokens - (rows - 1) * drawn)
    return _step(groups, block_size, [longest] + [drawn] * (rows - 1), drawn)


def short_step(groups: int, block_size: int, max_model_len: int) -> StepInputs:
    """One prompt of a block, in the first blocks."""
    return _step(groups, block_size, [min(block_size, max_model_len)], 1)[0]


def _step(groups: int, block_size: int, counts: Sequence[int], drawn: int) -> tuple[StepInputs, int]:
    scheduled: list[ScheduledRow] = []
    wanted: list[int] = []
    block = end = 0
    for number, count in enumerate(counts):
        needed = -(-count // block_size)
        row = Row(
            request_id=str(number),
            token_ids=[0] * count,
            num_prompt_tokens=count,
            params=SamplingParams(),
            seed=0,
            choice=0,
            block_ids=[[(block + index) * groups + group for index in range(needed)] for group in range(groups)],
            num_computed_tokens=0,
        )
        scheduled.append(ScheduledRow(row, count, True))
        block, end = block + needed, end + count
        wanted += range(max(end - drawn, end - count), end)
    return Rows(groups, block_size).inputs(scheduled, wanted), block * groups

"""Log-probabilities without a model: each a function of the token's place and id, so that any loss is seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from enginebay.messages import PromptLogprobs, TokenLogprob
from enginebay.worker import ScheduledRow

__all__ = ["entry", "told_of"]


def entry(token_id: int, position: int, asked: int) -> TokenLogprob:
    """What is told of the token at a position of prompt plus output."""
    top = tuple(((position + rank) % 250, -(rank + 1) / 4) for rank in range(asked))
    return TokenLogprob(token_id=token_id, logprob=-((token_id * 31 + position * 7) % 97) / 8, rank=2, top=top)


def told_of(
    rows: Iterable[ScheduledRow], drawn: Mapping[str, Sequence[int]]
) -> tuple[dict[str, tuple[TokenLogprob, ...]], dict[str, PromptLogprobs]]:
    """The log-probabilities of a step's tokens, and of the prompts that it computed; before ``finish_step``."""
    tokens, prompts = {}, {}
    for one in rows:
        row, params = one.row, one.row.params
        if params.logprobs is not None:
            ids = drawn.get(row.request_id, ())
            known = len(row.token_ids)
            tokens[row.request_id] = tuple(entry(t, known + i, params.logprobs) for i, t in enumerate(ids))
        if params.prompt_logprobs is not None:
            start = row.num_computed_tokens + 1
            end = min(row.num_computed_tokens + one.num_tokens, row.num_prompt_tokens - 1)
            entries = [entry(row.token_ids[p], p, params.prompt_logprobs) for p in range(start, end + 1)]
            prompts[row.request_id] = PromptLogprobs(start=start, entries=tuple(entries))
    return tokens, prompts

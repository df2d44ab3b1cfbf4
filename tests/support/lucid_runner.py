"""A runner that serves every request parameter: its logits are a function of the tokens before, without any model."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from enginebay.interfaces import ModelRunner, NoOptions, RunnerContext
from enginebay.messages import KVCacheSpec, ModelRunnerOutput, PromptLogprobs, SchedulerOutput
from enginebay.worker import RequestTable
from enginebay.worker.logprobs import token_logprobs
from enginebay.worker.sampling import Draw, draw_tokens

FEATURES = frozenset(
    {
        "bad_words",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "n",
        "penalties",
        "prompt_logprobs",
        "seed",
        "top_k",
        "top_p",
    }
)


def logits_after(token_ids: Sequence[int], vocab_size: int) -> torch.Tensor:
    """Logits ``[vocab_size]`` of the token after these."""
    random = np.random.default_rng(zlib.crc32(array("q", token_ids).tobytes()))
    return torch.from_numpy(random.normal(0.0, 2.0, vocab_size))


class Lucid(ModelRunner[NoOptions]):
    """Everything that a row asks is read off its tokens; there is no cache."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()

    def load_model(self) -> None:
        """Nothing to load."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """Nothing to keep."""
        return KVCacheSpec(groups=())

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Nothing to make."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """One step."""
        model = self.context.model
        batch = self.table.begin_step(scheduler_output)
        prompts: dict[str, PromptLogprobs] = {}
        for part in batch:
            row, start = part.row, part.row.num_computed_tokens
            stop = min(start + part.num_tokens + 1, row.num_prompt_tokens)
            if row.params.prompt_logprobs is not None and row.choice == 0 and start + 1 < stop:
                places = range(start + 1, stop)
                logits = torch.stack([logits_after(row.token_ids[:place], model.vocab_size) for place in places])
                entries = token_logprobs(logits, row.token_ids[start + 1 : stop], row.params.prompt_logprobs)
                prompts[row.request_id] = PromptLogprobs(start=start + 1, entries=tuple(entries))
        rows = [part.row for part in batch if part.samples]
        if not rows:
            return self.table.finish_step({}, prompt_logprobs=prompts)
        drawn = draw_tokens(
            torch.stack([logits_after(row.token_ids, model.vocab_size) for row in rows]),
            [
                Draw(row.params, row.token_ids, row.num_prompt_tokens, row.seed, row.choice, model.eos_token_ids)
                for row in rows
            ],
        )
        tokens = {
            row.request_id: (token,) for row, token in zip(rows, drawn.token_ids, strict=True) if token is not None
        }
        return self.table.finish_step(
            tokens,
            {rows[i].request_id: text for i, text in drawn.faults.items()},
            logprobs={rows[i].request_id: (entry,) for i, entry in drawn.logprobs.items()},
            prompt_logprobs=prompts,
        )

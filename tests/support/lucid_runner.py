"""A runner that serves every request parameter: its logits are a function of the tokens before, without any model."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from enginebay.interfaces import ModelRunner, NoOptions, RunnerContext
from enginebay.messages import GrammarOutput, KVCacheSpec, ModelRunnerOutput, PromptLogprobs, SchedulerOutput
from enginebay.worker import RequestTable, ScheduledRow
from enginebay.worker.logprobs import token_logprobs
from enginebay.worker.verification import draw_step

FEATURES = frozenset(
    {
        "bad_words",
        "grammar",
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
        self.pending: tuple[list[ScheduledRow], dict[str, PromptLogprobs]] = [], {}

    def load_model(self) -> None:
        """Nothing to load."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """Nothing to keep."""
        return KVCacheSpec(groups=())

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Nothing to make."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """One step; the draws wait for their masks, if there are any."""
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
        self.pending = [part for part in batch if part.samples], prompts
        return None if scheduler_output.constrained else self.sample_tokens(None)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        """The draws of the step before."""
        (drawing, prompts), model = self.pending, self.context.model
        if not drawing:
            return self.table.finish_step({}, prompt_logprobs=prompts)
        logits = [
            logits_after([*part.row.token_ids, *part.draft_token_ids[:depth]], model.vocab_size)
            for part in drawing
            for depth in range(1 + len(part.draft_token_ids))
        ]
        drawn = draw_step(torch.stack(logits), drawing, model.eos_token_ids, grammar_output)
        return self.table.finish_step(drawn.token_ids, drawn.faults, logprobs=drawn.logprobs, prompt_logprobs=prompts)

"""Runner ``v2``: one captured step over all scheduled tokens, run by native kernels where they can be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from enginebay.interfaces import RunnerContext
from enginebay.messages import GrammarOutput, KVCacheSpec, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import RequestTable, ScheduledRow
from enginebay.worker.answers import ROWS_AT_ONCE, PromptEntries, answer_step, prompt_targets
from enginebay.worker.loader import torch_dtype
from enginebay.worker.probing.shapes import kv_words
from enginebay.worker.sampling import Largest
from enginebay.worker.verification import draw_step
from enginebay_runner_v2.drawing import native_draws
from enginebay_runner_v2.loading import Loading
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.pages import reserve, spec_of
from enginebay_runner_v2.rows import Rows, StepInputs
from enginebay_runner_v2.trial import largest_step, short_step

__all__ = ["RunnerV2"]


@dataclass(frozen=True, slots=True)
class _Scored:
    """A step that was computed. ``logits`` are of the rows that draw, in order, one more for each proposal, and
    ``largest`` may know which of them are the largest."""

    scheduled: Sequence[ScheduledRow]
    logits: torch.Tensor
    largest: Largest
    prompts: Mapping[int, PromptEntries]


class RunnerV2(Loading):
    """See the module. The other half, ``Loading``, has the weights."""

    def __init__(self, context: RunnerContext[RunnerV2Options]) -> None:
        super().__init__(context)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """No request is known, and no step is under way."""
        self.table = RequestTable()
        self._rows: Rows | None = None
        self._generation = 0
        self._scored: _Scored | None = None

    @property
    def _cache_dtype(self) -> torch.dtype:
        context = self.context
        return torch.int8 if context.options.kv_cache == "int8" else torch_dtype(context.cache_dtype)

    def kv_cache_spec(self) -> KVCacheSpec:
        """The groups of the layers' windows, of the shapes that capture saw."""
        prepared = self.prepared
        return spec_of(prepared.shapes, prepared.groups, block_size=self.context.block_size, dtype=self._cache_dtype)

    def profile_run(self) -> None:
        """Run the largest step: whole prompts up to the token budget, each of which draws."""
        context, groups = self.context, len(self.prepared.groups)
        inputs, num_blocks = largest_step(
            groups,
            block_size=context.block_size,
            max_model_len=context.max_model_len,
            max_num_seqs=context.max_num_seqs,
            max_num_batched_tokens=context.max_num_batched_tokens,
            drawn=1 + context.max_draft_tokens,
        )
        self._bind(num_blocks)
        try:
            self._try(inputs)
        finally:
            self.drop_cache()

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Reserve the cache; the kernel gives its pages when blocks are first written."""
        self._num_blocks = num_blocks
        self._bind(num_blocks)
        groups, size = self.prepared.groups, self.context.block_size
        self.table.limit_blocks(num_blocks, [size] * len(groups), [group.window for group in groups])
        self._rows = Rows(len(groups), size)

    def _bind(self, num_blocks: int) -> None:
        context, prepared = self.context, self.prepared
        self.bind_cache(
            reserve(
                prepared.shapes,
                prepared.groups,
                num_blocks=num_blocks,
                block_size=context.block_size,
                dtype=self._cache_dtype,
            )
        )

    def warm_up(self) -> None:
        """Wait for the kernels if that was asked for, and run one short prompt in the first blocks."""
        self.make_native()
        self._try(short_step(len(self.prepared.groups), self.context.block_size, self.context.max_model_len))

    def _try(self, inputs: StepInputs) -> None:
        computed = self.step.compute(inputs)
        for begin in range(0, len(inputs.rows), ROWS_AT_ONCE):
            computed.logits(inputs.rows[begin : begin + ROWS_AT_ONCE])

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """One step over all its tokens; logits and draws only for the requests that reach their end.

        Where some draw under a grammar, the logits are kept until their masks come with ``sample_tokens``.
        """
        self._scored = None
        scheduled = self.table.begin_step(scheduler_output)
        self._forget(scheduler_output)
        if not scheduled:
            return self.table.finish_step({})
        self.change_over()
        self._scored = self._score(scheduled)
        return None if scheduler_output.constrained else self.sample_tokens(None)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        """Draw for all requests of the step that was computed last."""
        step, self._scored = self._scored, None
        assert step is not None, "the worker keeps the order"
        drawing = [part for part in step.scheduled if part.samples]
        drawn = draw_step(
            step.logits,
            drawing,
            self.context.model.eos_token_ids,
            grammar_output,
            largest=step.largest,
            quick=native_draws if self.step.native else None,
        )
        return answer_step(self.table, step.scheduled, drawn, step.prompts)

    def _forget(self, scheduler_output: SchedulerOutput) -> None:
        assert self._rows is not None, "a step before initialize_kv_cache"
        if scheduler_output.generation != self._generation:
            self._generation = scheduler_output.generation
            self._rows.clear()
        self._rows.forget(scheduler_output.finished)

    @torch.inference_mode()
    def _score(self, scheduled: Sequence[ScheduledRow]) -> _Scored:
        assert self._rows is not None, "a step before initialize_kv_cache"
        inputs = self._rows.inputs(scheduled)
        computed = self.step.compute(inputs)
        prompts: dict[int, PromptEntries] = {}
        for index, part in enumerate(scheduled):
            if targets := prompt_targets(part):
                begin = int(inputs.query_starts[index])
                rows = range(begin, begin + len(targets))
                prompts[index] = computed.prompt_entries(rows, targets, part.row.params.prompt_logprobs or 0)
        logits, largest = computed.scored(inputs.rows)
        return _Scored(scheduled, logits, largest, prompts)

    def in_force(self) -> dict[str, str]:
        """What runs."""
        return {
            "attention": "paged_native" if self.step.native else "paged_reference",
            "execution": "graph, native" if self.step.native else "graph, python",
            "kv_cache": kv_words(self.prepared.shapes) + ("; int8" if self.context.options.kv_cache == "int8" else ""),
            **({"weights": "int8"} if self.context.options.weights == "int8" else {}),
            **({"tensor parallel": self.prepared.split} if self.prepared.split else {}),
        }

    def close(self) -> None:
        """Drop model and cache; also after a failed load."""
        self.drop()
        self._begin_anew()

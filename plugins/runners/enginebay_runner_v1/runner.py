"""Runner ``v1``: one eager forward a step over all scheduled tokens, with transformers' own modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from enginebay.interfaces import ModelRunner, NoOptions, RunnerContext
from enginebay.messages import KVCacheSpec, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import RequestTable
from enginebay.worker.loader import load_causal_lm, torch_dtype
from enginebay.worker.sampling import Draw, draw_tokens
from enginebay_runner_v1.attention import ATTENTION, LayerBinding, PagedCache, bind_step, register
from enginebay_runner_v1.batch import Chunk, lay_out, lay_out_tokens
from enginebay_runner_v1.probe import LayerShape, attention_modules, kv_spec, probe

__all__ = ["RunnerV1"]


@dataclass(frozen=True, slots=True)
class _Span:
    """One request's tokens of a step: where they begin, their ids, its blocks, and whether it draws."""

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    samples: bool


class RunnerV1(ModelRunner[NoOptions]):
    """See the module."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()
        self._model: Any = None
        self._shapes: tuple[LayerShape, ...] = ()
        self._cache: PagedCache | None = None

    def load_model(self) -> None:
        """Map the weights, then probe the attention of each layer."""
        register()
        context = self.context
        self._model = load_causal_lm(
            Path(context.model.path),
            architecture=context.model.architecture,
            dtype=context.dtype,
            device=context.device.name(),
            attention=ATTENTION,
        )
        self._shapes = probe(self._model)

    def kv_cache_spec(self) -> KVCacheSpec:
        """One group for all layers, of the shape that the probe saw."""
        assert self._shapes, "kv_cache_spec before load_model"
        return kv_spec(self._shapes, self.context.block_size, torch_dtype(self.context.cache_dtype).itemsize)

    def profile_run(self) -> None:
        """Run the largest step: whole prompts up to the token budget, each of which draws."""
        context = self.context
        self._bind(num_blocks=-(-context.max_num_batched_tokens // context.block_size) + context.max_num_seqs)
        try:
            self._forward(self._largest_step())
        finally:
            self._unbind()

    def _largest_step(self) -> list[_Span]:
        context = self.context
        rows = min(context.max_num_seqs, context.max_num_batched_tokens)
        longest = min(context.max_model_len, context.max_num_batched_tokens - rows + 1)
        counts = [longest] + [1] * (rows - 1)
        spans: list[_Span] = []
        block = 0
        for count in counts:
            blocks = range(block, block + -(-count // context.block_size))
            block = blocks.stop
            spans.append(_Span(0, [0] * count, blocks, samples=True))
        return spans

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Reserve the cache; the kernel gives its pages when blocks are first written."""
        self._bind(num_blocks)

    def _bind(self, num_blocks: int) -> None:
        context, shape = self.context, self._shapes[0]
        size = (len(self._shapes), 2, num_blocks, context.block_size, shape.kv_heads, shape.head_dim)
        pages = torch.empty(size, dtype=torch_dtype(context.cache_dtype), device=self._model.device)
        self._cache = PagedCache(pages)
        for layer, module in enumerate(attention_modules(self._model)):
            module.eb = LayerBinding(self._cache, layer, self._shapes[layer].window)

    def _unbind(self) -> None:
        for module in attention_modules(self._model) if self._model is not None else []:
            module.__dict__.pop("eb", None)
        self._cache = None

    def warm_up(self) -> None:
        """Run one short prompt in block 0, whose content is cleared when a request enters it."""
        count = min(self.context.block_size, self.context.max_model_len)
        self._forward([_Span(0, [0] * count, [0], samples=True)])

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """One forward over all tokens of the step; logits and draws only for the requests that reach their end."""
        scheduled = self.table.begin_step(scheduler_output)
        if not scheduled:
            return self.table.finish_step({})
        logits = self._forward(
            [
                _Span(
                    part.row.num_computed_tokens,
                    part.row.token_ids[part.row.num_computed_tokens : part.row.num_computed_tokens + part.num_tokens],
                    part.row.block_ids[0],
                    part.samples,
                )
                for part in scheduled
            ]
        )
        drawing = [part.row for part in scheduled if part.samples]
        drawn = draw_tokens(
            logits, [Draw(row.params, row.seed, row.choice, position=len(row.token_ids)) for row in drawing]
        )
        sampled = {
            row.request_id: (token,) for row, token in zip(drawing, drawn.token_ids, strict=True) if token is not None
        }
        return self.table.finish_step(sampled, {drawing[i].request_id: text for i, text in drawn.faults.items()})

    @torch.inference_mode()
    def _forward(self, spans: Sequence[_Span]) -> torch.Tensor:
        """Logits ``[drawing rows, vocab]`` of these spans, whose keys and values are in the cache afterwards."""
        assert self._cache is not None, "a step before initialize_kv_cache"
        device = self._model.device
        positions, last = lay_out_tokens([(span.start, len(span.token_ids)) for span in spans])
        chunks = [Chunk(span.start, len(span.token_ids), span.block_ids) for span in spans]
        windows = dict.fromkeys(shape.window for shape in self._shapes)
        layouts = {window: lay_out(chunks, self.context.block_size, window) for window in windows}
        bind_step(self._cache, layouts, self._model.dtype)
        ids = torch.tensor([token for span in spans for token in span.token_ids], dtype=torch.int64)
        keep = torch.from_numpy(last[[index for index, span in enumerate(spans) if span.samples]])
        output = self._model(
            input_ids=ids.unsqueeze(0).to(device),
            position_ids=torch.from_numpy(positions).unsqueeze(0).to(device),
            use_cache=False,
            logits_to_keep=keep.to(device),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def in_force(self) -> dict[str, str]:
        """What runs."""
        return {"attention": "paged_sdpa", "execution": "eager"}

    def close(self) -> None:
        """Drop model and cache; also after a failed load."""
        self._unbind()
        self._model = None
        self._shapes = ()
        self.table = RequestTable()

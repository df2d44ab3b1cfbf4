"""Runner ``v1``: one eager forward a step over all scheduled tokens, with transformers' own modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from enginebay.interfaces import NoOptions, RunnerContext
from enginebay.messages import KVCacheSpec, ModelRunnerOutput, PromptLogprobs, SchedulerOutput, TokenLogprob
from enginebay.worker import RequestTable, Row, ScheduledRow
from enginebay.worker.loader import WeightSource, load_causal_lm, torch_dtype
from enginebay.worker.loader_empty import empty_causal_lm, weights_of
from enginebay.worker.sampling import Draw, draw_tokens
from enginebay_runner_v1.attention import ATTENTION, LayerBinding, PagedCache, bind_step, register
from enginebay_runner_v1.batch import Chunk, lay_out, lay_out_tokens
from enginebay_runner_v1.invariant import make_invariant
from enginebay_runner_v1.invariant_attention import InvariantBinding
from enginebay_runner_v1.invariant_check import Part, check_whole
from enginebay_runner_v1.probe import attention_modules, probe
from enginebay_runner_v1.prompts import ROWS_AT_ONCE, body_outputs, logprobs_in_chunks, prompt_targets
from enginebay_runner_v1.shapes import kv_spec, kv_words
from enginebay_runner_v1.weights import WeightLife, num_bytes

__all__ = ["RunnerV1"]


@dataclass(frozen=True, slots=True)
class _Span:
    """One request's tokens of a step: where they begin, their ids, its blocks, and whether it draws.

    ``targets`` are the prompt tokens that its first rows predict, where their log-probabilities are asked for, with
    ``top`` others beside each.
    """

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    samples: bool
    targets: Sequence[int] = ()
    top: int = 0


class RunnerV1(WeightLife):
    """See the module."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()

    def load_model(self) -> None:
        """Map the weights, then probe the attention of each layer."""
        self._load(None)

    def _load(self, weights: WeightSource | None) -> None:
        """From these weights; None: the model folder's own."""
        register()
        context, share = self.context, self._share
        with share.agreed():
            self._model = load_causal_lm(
                Path(context.model.path),
                architecture=context.model.architecture,
                dtype=context.dtype,
                device=context.device.name(),
                attention=ATTENTION,
                part=share,
                weights=weights,
            )
        self._look()

    def load_empty(self) -> None:
        """The same module over weights of any content; a peer fills them."""
        register()
        context, share = self.context, self._share
        with share.agreed():
            self._model = empty_causal_lm(
                Path(context.model.path),
                architecture=context.model.architecture,
                dtype=context.dtype,
                device=context.device.name(),
                attention=ATTENTION,
                part=share,
            )

    def weights(self) -> Mapping[str, torch.Tensor]:
        """This rank's, tied ones once."""
        return weights_of(self._model)

    def weights_received(self) -> None:
        """Look at the model, as after a load."""
        self._look()

    def _look(self) -> None:
        """Probe the attention of each layer, and make the steps independent of the batch if that was asked for."""
        context, share = self.context, self._share
        self._weight_bytes = num_bytes(self._model)
        with body_outputs(self._model) as outputs:
            self._shapes = probe(self._model, share.run, share.layers(self._model))
        modules = self._attention_modules()
        share.check_split(self._model, modules, self._shapes, outputs[0].last_hidden_state)
        if context.batch_invariant:
            self._invariance = make_invariant(self._model, modules, self._shapes, context.block_size, share.run)

    def kv_cache_spec(self) -> KVCacheSpec:
        """One group for all layers, of the shapes that the probe saw."""
        assert self._shapes, "kv_cache_spec before load_model"
        return kv_spec(
            self._shapes,
            self.context.block_size,
            torch_dtype(self.context.cache_dtype).itemsize,
            self._share.layers(self._model).start,
        )

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
            targets = [0] * min(count, ROWS_AT_ONCE) if not spans else ()
            spans.append(_Span(0, [0] * count, blocks, samples=True, targets=targets))
        return spans

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Reserve the cache; the kernel gives its pages when blocks are first written."""
        self._bind(num_blocks)

    def _bind(self, num_blocks: int) -> None:
        context, device = self.context, torch.device(self.context.device.name())
        dtype = torch_dtype(context.cache_dtype)

        def pages(kv_heads: int, width: int) -> torch.Tensor:
            return torch.empty((num_blocks, context.block_size, kv_heads, width), dtype=dtype, device=device)

        self._cache = PagedCache(
            tuple((pages(s.kv_heads, s.key_width), pages(s.kv_heads, s.value_width)) for s in self._shapes)
        )
        self._num_blocks = num_blocks
        self._attach()

    def _attach(self) -> None:
        """Give every layer the cache, if there are both by now."""
        if self._cache is None or self._model is None:
            return
        for layer, module in enumerate(self._attention_modules()):
            module.eb = self._binding(self._cache, layer)

    def _binding(self, cache: PagedCache, layer: int) -> LayerBinding:
        window, fixed = self._shapes[layer].window, self._invariance
        if fixed is None:
            return LayerBinding(cache, layer, window)
        return InvariantBinding(cache, layer, window, fixed.attention, fixed.tile)

    def _attention_modules(self) -> list[Any]:
        return attention_modules(self._model, self._share.layers(self._model))

    def _unbind(self) -> None:
        for module in self._attention_modules() if self._model is not None else []:
            module.__dict__.pop("eb", None)
        self._cache = None

    def warm_up(self) -> None:
        """Run one short prompt in block 0, whose content is cleared when a request enters it."""
        count = min(self.context.block_size, self.context.max_model_len)
        self._forward([_Span(0, [0] * count, [0], samples=True)])
        if self._invariance is not None:
            assert self._cache is not None, "warm_up before initialize_kv_cache"
            check_whole(
                self._run_parts,
                vocab_size=self.context.model.vocab_size,
                num_blocks=self._cache.num_blocks,
                block_size=self.context.block_size,
                max_model_len=self.context.max_model_len,
            )

    def _run_parts(self, parts: Sequence[Part]) -> torch.Tensor:
        return self._forward([_Span(p.start, p.token_ids, p.block_ids, samples=True) for p in parts])[0]

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """One forward over all tokens of the step; logits and draws only for the requests that reach their end."""
        scheduled = self.table.begin_step(scheduler_output)
        if not scheduled:
            return self.table.finish_step({})
        logits, prompts = self._forward([_span_of(part) for part in scheduled])
        drawing = [part.row for part in scheduled if part.samples]
        if not self._share.answers:
            return self._finish_elsewhere(drawing)
        drawn = draw_tokens(logits, [self._draw_of(row) for row in drawing])
        self._share.drawn(drawn.token_ids, len(drawing))
        sampled = {
            row.request_id: (token,) for row, token in zip(drawing, drawn.token_ids, strict=True) if token is not None
        }
        faults = {drawing[i].request_id: text for i, text in drawn.faults.items()}
        prompt_logprobs: dict[str, PromptLogprobs] = {}
        for index, entries in prompts.items():
            row = scheduled[index].row
            if isinstance(entries, str):
                faults[row.request_id] = f"the model's logits for the prompt are {entries}: no log-probability is known"
            else:
                prompt_logprobs[row.request_id] = PromptLogprobs(
                    start=row.num_computed_tokens + 1, entries=tuple(entries)
                )
        return self.table.finish_step(
            sampled,
            faults,
            logprobs={drawing[i].request_id: (entry,) for i, entry in drawn.logprobs.items()},
            prompt_logprobs=prompt_logprobs,
        )

    def _finish_elsewhere(self, drawing: Sequence[Row]) -> ModelRunnerOutput:
        """The end of a step whose tokens the last stage draws: this one remembers them too."""
        told = self._share.drawn([], len(drawing))
        tokens = {row.request_id: token for row, token in zip(drawing, told, strict=True)}
        return self.table.finish_step(
            {request_id: (token,) for request_id, token in tokens.items() if token is not None},
            {request_id: "its logits are at fault" for request_id, token in tokens.items() if token is None},
        )

    def _draw_of(self, row: Row) -> Draw:
        eos = self.context.model.eos_token_ids
        return Draw(row.params, row.token_ids, row.num_prompt_tokens, row.seed, row.choice, eos)

    @torch.inference_mode()
    def _forward(self, spans: Sequence[_Span]) -> tuple[torch.Tensor, dict[int, list[TokenLogprob] | str]]:
        """Run these spans, whose keys and values are in the cache afterwards.

        Returns logits ``[drawing rows, vocab_size]``, and for each span with targets, by its index, their
        log-probabilities, or what is wrong with its logits. A stage before the last has activations instead.
        """
        assert self._cache is not None, "a step before initialize_kv_cache"
        device = self._model.device
        positions, last = lay_out_tokens([(span.start, len(span.token_ids)) for span in spans])
        chunks = [Chunk(span.start, len(span.token_ids), span.block_ids) for span in spans]
        windows = dict.fromkeys(shape.window for shape in self._shapes)
        size, fixed = self.context.block_size, self._invariance
        tile_blocks = None if fixed is None else fixed.tile // size
        layouts = {window: lay_out(chunks, size, window, tile_blocks) for window in windows}
        bind_step(self._cache, layouts, self._model.dtype if fixed is None else torch.float32)
        ids = torch.tensor([token for span in spans for token in span.token_ids], dtype=torch.int64)
        keep = torch.from_numpy(last[[index for index, span in enumerate(spans) if span.samples]])
        inputs = {
            "input_ids": ids.unsqueeze(0).to(device),
            "position_ids": torch.from_numpy(positions).unsqueeze(0).to(device),
            "use_cache": False,
        }
        asking = [index for index, span in enumerate(spans) if span.targets]
        with body_outputs(self._model) as outputs:
            logits = self._share.run(self._model, inputs, keep.to(device))[0]
        prompts: dict[int, list[TokenLogprob] | str] = {}
        if not self._share.answers:
            return logits[keep.to(device)], prompts
        for index in asking:
            span, begin = spans[index], int(last[index]) + 1 - len(spans[index].token_ids)
            rows = range(begin, begin + len(span.targets))
            prompts[index] = logprobs_in_chunks(self._model, inputs, outputs[0], rows, span.targets, span.top)
        return logits, prompts

    def in_force(self) -> dict[str, str]:
        """What runs."""
        common = {"execution": "eager", "kv_cache": kv_words(self._shapes), **self._share.words()}
        if self._invariance is None:
            return {"attention": "paged_sdpa", **common}
        return {"attention": "paged_tiles", **common, "batch_invariant": self._invariance.words}

    def close(self) -> None:
        """Drop model and cache; also after a failed load."""
        self._unbind()
        self._incoming = None
        self._model = None
        self._shapes = ()
        self._invariance = None
        self.table = RequestTable()


def _span_of(part: ScheduledRow) -> _Span:
    row, start = part.row, part.row.num_computed_tokens
    return _Span(
        start,
        row.token_ids[start : start + part.num_tokens],
        row.block_ids[0],
        part.samples,
        prompt_targets(part),
        row.params.prompt_logprobs or 0,
    )

"""Runner ``v1``: one eager forward a step over all scheduled tokens, with transformers' own modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from enginebay.interfaces import NoOptions, RunnerContext
from enginebay.messages import GrammarOutput, KVCacheSpec, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import RequestTable
from enginebay.worker.answers import ROWS_AT_ONCE, PromptEntries
from enginebay.worker.loader import WeightSource, load_causal_lm, torch_dtype
from enginebay.worker.loader_empty import empty_causal_lm, weights_of
from enginebay.worker.probing.groups import arrange, kv_spec
from enginebay.worker.probing.probe import attention_modules, probe
from enginebay.worker.probing.shapes import kv_words
from enginebay_runner_v1.attention import ATTENTION, LayerBinding, PagedCache, bind_step, register
from enginebay_runner_v1.batch import lay_out, lay_out_tokens, number_blocks
from enginebay_runner_v1.drawing import Drawing, DrawnElsewhere, Scored
from enginebay_runner_v1.invariant import make_invariant
from enginebay_runner_v1.invariant_attention import InvariantBinding
from enginebay_runner_v1.invariant_check import Part, check_whole
from enginebay_runner_v1.prompts import body_outputs, logprobs_in_chunks
from enginebay_runner_v1.reserve import reserve
from enginebay_runner_v1.spans import Span, span_of
from enginebay_runner_v1.weights import WeightLife, num_bytes

__all__ = ["RunnerV1"]


class RunnerV1(WeightLife):
    """See the module."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """No request is known, and no step is under way."""
        self.table = RequestTable()
        self._drawing = Drawing(self.table, self.context.model.eos_token_ids)
        self._scored: Scored | None = None

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
        windows = [None if (w := shape.window) is None or w >= context.max_model_len else w for shape in self._shapes]
        self._groups = arrange(share.windows(self._model, windows), share.layers(self._model))
        share.check_split(self._model, modules, self._shapes, outputs[0].last_hidden_state)
        if context.batch_invariant:
            self._invariance = make_invariant(self._model, modules, self._shapes, context.block_size, share.run)

    def kv_cache_spec(self) -> KVCacheSpec:
        """The groups of the layers' windows, of the shapes that the probe saw."""
        assert self._shapes, "kv_cache_spec before load_model"
        return kv_spec(
            self._shapes,
            self._groups,
            block_size=self.context.block_size,
            element_size=torch_dtype(self.context.cache_dtype).itemsize,
            first=self._share.layers(self._model).start,
        )

    def profile_run(self) -> None:
        """Run the largest step: whole prompts up to the token budget, each of which draws."""
        context = self.context
        each = -(-context.max_num_batched_tokens // context.block_size) + context.max_num_seqs
        self._bind(num_blocks=each * len(self._groups))
        try:
            self._forward(self._largest_step())
        finally:
            self._unbind()

    def _largest_step(self) -> list[Span]:
        context, each = self.context, 1 + self.context.max_draft_tokens
        rows = max(1, min(context.max_num_seqs, context.max_num_batched_tokens // each))
        longest = min(context.max_model_len, context.max_num_batched_tokens - (rows - 1) * each)
        counts = [longest] + [each] * (rows - 1)
        spans: list[Span] = []
        block = 0
        for count in counts:
            blocks = range(block, block + -(-count // context.block_size))
            block = blocks.stop
            targets = [0] * min(count, ROWS_AT_ONCE) if not spans else ()
            spans.append(Span(0, [0] * count, self._in_groups(blocks), drawn=min(each, count), targets=targets))
        return spans

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Reserve the cache; the kernel gives its pages when blocks are first written."""
        self._bind(num_blocks)
        sizes = [self.context.block_size] * len(self._groups)
        self.table.limit_blocks(num_blocks, sizes, [group.window for group in self._groups])

    def _bind(self, num_blocks: int) -> None:
        context = self.context
        self._cache = reserve(
            self._shapes,
            self._groups,
            num_blocks=num_blocks,
            block_size=context.block_size,
            dtype=torch_dtype(context.cache_dtype),
            device=torch.device(context.device.name()),
        )
        self._num_blocks = num_blocks
        self._attach()

    def _attach(self) -> None:
        """Give every layer the cache, if there are both by now."""
        if self._cache is None or self._model is None:
            return
        modules = self._attention_modules()
        for number, group in enumerate(self._groups):
            for layer in group.layers:
                modules[layer].eb = self._binding(self._cache, layer, number)

    def _binding(self, cache: PagedCache, layer: int, group: int) -> LayerBinding:
        fixed = self._invariance
        if fixed is None:
            return LayerBinding(cache, layer, group)
        return InvariantBinding(cache, layer, group, fixed.attention, fixed.tile)

    def _attention_modules(self) -> list[Any]:
        return attention_modules(self._model, self._share.layers(self._model))

    def _unbind(self) -> None:
        for module in self._attention_modules() if self._model is not None else []:
            module.__dict__.pop("eb", None)
        self._cache = None

    def warm_up(self) -> None:
        """Run one short prompt in the first blocks, whose content is cleared when a request enters them."""
        count = min(self.context.block_size, self.context.max_model_len)
        self._forward([Span(0, [0] * count, self._in_groups([0]), drawn=1)])
        if self._invariance is not None:
            assert self._cache is not None, "warm_up before initialize_kv_cache"
            check_whole(
                self._run_parts,
                vocab_size=self.context.model.vocab_size,
                num_blocks=self._cache.num_blocks // len(self._groups),
                block_size=self.context.block_size,
                max_model_len=self.context.max_model_len,
            )

    def _run_parts(self, parts: Sequence[Part]) -> torch.Tensor:
        return self._forward([Span(p.start, p.token_ids, self._in_groups(p.block_ids), drawn=1) for p in parts])[0]

    def _in_groups(self, numbers: Sequence[int]) -> list[list[int]]:
        """For each group blocks of its own, in the place of these of one group alone."""
        count = len(self._groups)
        return [[number * count + group for number in numbers] for group in range(count)]

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | DrawnElsewhere | None:
        """One forward over all tokens of the step; logits and draws only for the requests that reach their end.

        Where some draw under a grammar, the logits are kept until their masks come with ``sample_tokens``.
        """
        self._scored = None
        told = (*scheduler_output.num_scheduled_tokens, *scheduler_output.preempted, *scheduler_output.finished)
        self._drawing.catch_up(told)
        scheduled = self.table.begin_step(scheduler_output)
        if not scheduled:
            return self.table.finish_step({})
        step = Scored(scheduled, *self._forward([span_of(part) for part in scheduled]))
        if scheduler_output.constrained:
            self._scored = step
            return None
        return self._drawing.finish(step, self._share, None)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput | DrawnElsewhere:
        """Draw for all requests of the step that was computed last."""
        step, self._scored = self._scored, None
        assert step is not None, "the worker keeps the order"
        return self._drawing.finish(step, self._share, grammar_output)

    @torch.inference_mode()
    def _forward(self, spans: Sequence[Span]) -> tuple[torch.Tensor, dict[int, PromptEntries]]:
        """Run these spans, whose keys and values are in the cache afterwards.

        Returns logits ``[positions behind which is drawn, vocab_size]``, and for each span with targets, by its index,
        their log-probabilities, or what is wrong with its logits. A stage before the last has activations instead.
        """
        assert self._cache is not None, "a step before initialize_kv_cache"
        device = self._model.device
        lengths = [(span.start, len(span.token_ids)) for span in spans]
        positions, last = lay_out_tokens(lengths)
        size, fixed = self.context.block_size, self._invariance
        chunks, tables = number_blocks(lengths, [span.block_ids for span in spans], size)
        tile_blocks = None if fixed is None else fixed.tile // size
        windows = dict.fromkeys(group.window for group in self._groups)
        layouts = {window: lay_out(chunks, size, window, tile_blocks) for window in windows}
        bind_step(self._cache, layouts, tables, self._model.dtype if fixed is None else torch.float32)
        ids = torch.tensor([token for span in spans for token in span.token_ids], dtype=torch.int64)
        keep = torch.tensor(
            [
                row
                for span, end in zip(spans, last.tolist(), strict=True)
                for row in range(end + 1 - span.drawn, end + 1)
            ],
            dtype=torch.int64,
        )
        inputs = {
            "input_ids": ids.unsqueeze(0).to(device),
            "position_ids": torch.from_numpy(positions).unsqueeze(0).to(device),
            "use_cache": False,
        }
        asking = [index for index, span in enumerate(spans) if span.targets]
        with body_outputs(self._model) as outputs:
            logits = self._share.run(self._model, inputs, keep.to(device))[0]
        prompts: dict[int, PromptEntries] = {}
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
        self._shapes, self._groups = (), ()
        self._invariance = None
        self._begin_anew()

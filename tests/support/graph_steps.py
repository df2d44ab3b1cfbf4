"""Runs a captured step as a runner would: several requests over paged caches, in steps, with greedy draws."""

from __future__ import annotations

import atexit
import copy
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from enginebay.graph import run_passes
from enginebay.interfaces import GraphContext, GraphPass, Origin
from enginebay.models import read_model_info
from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.capture import CapturedModel, capture
from enginebay_runner_v2.passes import built_in_passes
from enginebay_runner_v2.passes.origins import constant_tensor
from support.tiny_models import make_model

__all__ = [
    "BLOCK_SIZE",
    "MAX_MODEL_LEN",
    "SMALL",
    "Paged",
    "Request",
    "Step",
    "capture_tiny",
    "paged",
    "rewrite",
    "state_of",
    "step_inputs",
    "tiny_step",
]

BLOCK_SIZE = 4
MAX_MODEL_LEN = 128
_ONE_LAYER = {"num_hidden_layers": 1}
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "gemma2": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral-window": _ONE_LAYER,
    "qwen2": _ONE_LAYER,
    "qwen3": _ONE_LAYER,
    "phi3": _ONE_LAYER,
    "olmo2": _ONE_LAYER,
    "granite": _ONE_LAYER,
}
"""Families whose steps differ in what passes look for, and what makes their tiny models smaller still."""


def capture_tiny(folder: Path, dtype: str = "float32", **options: Any) -> tuple[CapturedModel, GraphContext]:
    """The step of the folder's model, and the context for its passes; ``options``: ``tensor_rank`` and its size."""
    info = read_model_info(folder, needs_tokenizer=False)
    captured = capture(folder, info, dtype=dtype, max_model_len=MAX_MODEL_LEN, **options)
    context = GraphContext(
        dtype=dtype,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        model=info,
        constants=dict(captured.constants),
        **options,
    )
    return captured, context


@dataclass(frozen=True)
class Step:
    """A tiny model's folder, its captured step, and the context for its passes."""

    folder: Path
    captured: CapturedModel
    context: GraphContext

    def paged(self) -> Paged:
        """To run the graph as it is now."""
        return paged(self.captured, self.context, state_of(self.folder))


@cache
def _stages(family: str) -> tuple[Path, dict[str, tuple[CapturedModel, GraphContext]]]:
    """The folder of this family's tiny model, and its step after each pass; as captured under the name ""."""
    folder = Path(mkdtemp(prefix="enginebay-step-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_model(folder, family, **SMALL.get(family, {}))
    captured, context = capture_tiny(folder)
    stages = {"": _copy(captured, context)}

    def keep(graph_pass: GraphPass) -> None:
        stages[graph_pass.name] = _copy(captured, context)

    run_passes(captured.graph_module, built_in_passes(), context, after_each=keep)
    return folder, stages


def _copy(captured: CapturedModel, context: GraphContext) -> tuple[CapturedModel, GraphContext]:
    graph = copy.deepcopy(captured.graph_module.graph)
    own = replace(captured, graph_module=torch.fx.GraphModule(torch.nn.Module(), graph))
    return own, replace(context, constants=dict(context.constants))


def tiny_step(family: str, after: str = "") -> Step:
    """The step of this family's tiny model behind this pass, "": before all; each caller gets a graph of its own.

    A model is captured and rewritten once in a process.
    """
    folder, stages = _stages(family)
    return Step(folder, *_copy(*stages[after]))


def rewrite(captured: CapturedModel, context: GraphContext) -> None:
    """Apply the built-in passes in place."""
    run_passes(captured.graph_module, built_in_passes(), context)


@cache
def state_of(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The model's weights by its own names, a tied one under each."""
    import transformers

    architecture = read_model_info(folder, needs_tokenizer=False).architecture
    model = getattr(transformers, architecture).from_pretrained(folder, dtype=dtype).eval()
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


@dataclass
class Request:
    """One request: its tokens, how many of them are its prompt and how many are computed, its blocks by group."""

    tokens: list[int]
    prompt: int
    computed: int
    blocks: list[list[int]]


class Paged:
    """Requests over the caches of one captured step. Blocks are handed out in random order, with garbage in them."""

    def __init__(
        self,
        run: Callable[..., Sequence[torch.Tensor]],
        placeholders: Sequence[str],
        constants: Mapping[str, Origin],
        state: Mapping[str, torch.Tensor],
        shapes: Sequence[LayerShape],
        groups: Sequence[LayerGroup],
        *,
        num_blocks: int = 64,
        seed: int = 3,
    ) -> None:
        self.run, self.placeholders, self.groups = run, placeholders, groups
        self.tensors = {name: constant_tensor(origin, state) for name, origin in constants.items()}
        dtype = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
        generator = torch.Generator().manual_seed(seed)
        for layer, shape in enumerate(shapes):
            for what, width in (("key", shape.key_width), ("value", shape.value_width)):
                pages = torch.randn((num_blocks, BLOCK_SIZE, shape.kv_heads, width), generator=generator)
                self.tensors[f"{what}_cache_{layer}"] = pages.to(dtype)
        self.random = random.Random(seed)
        self.free = [self.random.sample(range(num_blocks), num_blocks) for _ in groups]

    def step(self, requests: Sequence[Request], counts: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Compute so many tokens of each request; the outputs, whose rows are the last tokens of the requests."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[list[int]] = [[] for _ in self.groups]
        starts = [0]
        for request, count in zip(requests, counts, strict=True):
            span = range(request.computed, request.computed + count)
            ids += request.tokens[span.start : span.stop]
            positions += span
            starts.append(starts[-1] + count)
            for group, blocks in enumerate(request.blocks):
                while len(blocks) * BLOCK_SIZE < span.stop:
                    blocks.append(self.free[group].pop())
                slots[group] += [blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in span]
            request.computed = span.stop
        width = max(len(request.blocks[0]) for request in requests)
        inputs = {
            "input_ids": torch.tensor(ids),
            "positions": torch.tensor(positions),
            "rows": torch.tensor([end - 1 for end in starts[1:]]),
            "query_starts": torch.tensor(starts, dtype=torch.int32),
            "context_lens": torch.tensor([request.computed for request in requests], dtype=torch.int32),
        }
        for group in range(len(self.groups)):
            table = [request.blocks[group] + [0] * (width - len(request.blocks[group])) for request in requests]
            inputs[f"slots_{group}"] = torch.tensor(slots[group])
            inputs[f"block_tables_{group}"] = torch.tensor(table, dtype=torch.int32)
        with torch.inference_mode():
            return tuple(self.run(*({**inputs, **self.tensors}[name] for name in self.placeholders)))

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, chunk: int = 5) -> list[list[int]]:
        """Greedy tokens of each prompt. Prompts are computed in chunks beside the draws of those that have begun."""
        requests = [Request(list(prompt), len(prompt), 0, [[] for _ in self.groups]) for prompt in prompts]
        for late, request in enumerate(requests):  # they arrive one step after the other
            self._advance(requests[:late], max_new_tokens, chunk) if late else None
            assert request.computed == 0
        while any(len(request.tokens) < request.prompt + max_new_tokens for request in requests):
            self._advance(requests, max_new_tokens, chunk)
        return [request.tokens[request.prompt :] for request in requests]

    def _advance(self, requests: Sequence[Request], max_new_tokens: int, chunk: int) -> None:
        running = [r for r in requests if len(r.tokens) < r.prompt + max_new_tokens]
        if not running:
            return
        self.random.shuffle(running)
        counts = [min(chunk, len(request.tokens) - request.computed) for request in running]
        logits = self.step(running, counts)[0]
        for request, row in zip(running, logits, strict=True):
            if request.computed == len(request.tokens):
                request.tokens.append(int(row.argmax()))


def paged(captured: CapturedModel, context: GraphContext, state: Mapping[str, torch.Tensor]) -> Paged:
    """Of the graph as it is now."""
    module = captured.graph_module
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return Paged(module, names, context.constants, state, captured.own_shapes, captured.groups)


def step_inputs(step: Paged, lengths: Sequence[int], *, seed: int = 5) -> dict[str, torch.Tensor]:
    """The inputs and caches of one step in which requests of these lengths begin, for ``enginebay.graph.verify``."""
    rng = random.Random(seed)
    requests = [Request([rng.randrange(199) for _ in range(n)], n, 0, [[] for _ in step.groups]) for n in lengths]
    seen: dict[str, torch.Tensor] = {}

    def keep(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.update(zip(step.placeholders, tensors, strict=True))
        return (tensors[0],)

    step.run, run = keep, step.run
    step.step(requests, lengths)
    step.run = run
    return seen

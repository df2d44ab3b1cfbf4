"""A model's step before any pass, with tensors to run it on: for ``enginebay graph``, and to check the passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from enginebay.graph import run_verified
from enginebay.interfaces import CapturedGraph, GraphContext, Origin, RunnerContext
from enginebay.worker.loader import FolderWeights, torch_dtype
from enginebay.worker.loader_facts import ModelFacts, find_places, read_weights
from enginebay_runner_v2.capture import CapturedModel, capture
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.pages import reserve
from enginebay_runner_v2.passes.origins import constant_tensor

__all__ = ["captured", "check_passes"]

_KNOWN, _NEW = (9, 0, 20), (1, 7, 5)
"""Of three requests, the tokens in the cache before the step and in it: one decodes, one is new, one goes on."""


def captured(context: GraphContext) -> CapturedGraph:
    """Capture ``context.model``; see ``RunnerPlugin.capture``."""
    assert context.model is not None, "a runner captures models"
    folder = Path(context.model.path)
    taken = capture(folder, context.model, dtype=context.dtype, max_model_len=context.max_model_len)
    context.constants.update(taken.constants)
    vocab = context.model.vocab_size
    return CapturedGraph(
        graph_module=taken.graph_module,
        modules=("enginebay_runner_v2.ops",),
        inputs=lambda: _inputs(taken, context.dtype, context.block_size, vocab),
        constant=_constants(folder, taken.facts, context.dtype),
    )


def check_passes(context: RunnerContext[RunnerV2Options]) -> None:
    """Compare results before and after each pass, in float32, whatever the runner computes in.

    Raises ``PluginBroken`` that names the first pass that changes them.
    """
    told = GraphContext(
        dtype="float32", block_size=context.block_size, max_model_len=context.max_model_len, model=context.model
    )
    taken = captured(told)
    assert taken.inputs is not None
    assert taken.constant is not None
    run_verified(taken.graph_module, context.graph_passes, told, inputs=taken.inputs(), constant=taken.constant)


def _constants(folder: Path, facts: ModelFacts, dtype: str) -> Callable[[Origin], torch.Tensor]:
    """What gives a constant's tensor; the weights are read when the first is asked for."""
    state: dict[str, torch.Tensor] = {}

    def tensor(origin: Origin) -> torch.Tensor:
        if not state:
            source = FolderWeights(folder)
            places = find_places(source, facts)
            state.update(read_weights(source, facts, places, dtype=torch_dtype(dtype), device=torch.device("cpu")))
        return constant_tensor(origin, state)

    return tensor


def _inputs(taken: CapturedModel, dtype: str, block_size: int, vocab: int) -> Mapping[str, torch.Tensor]:
    """One step of three requests over a cache that is full of numbers; the same at every call."""
    drawn = torch.Generator().manual_seed(0)
    lengths = [known + new for known, new in zip(_KNOWN, _NEW, strict=True)]
    positions = torch.cat([torch.arange(known, length) for known, length in zip(_KNOWN, lengths, strict=True)])
    starts = torch.tensor([0, *_NEW]).cumsum(0)
    wide = -(-max(lengths) // block_size)
    blocks = len(lengths) * len(taken.groups) * wide
    shuffled = torch.randperm(blocks, generator=drawn).view(len(taken.groups), len(lengths), wide)
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(_NEW))
    inputs = {
        "input_ids": torch.randint(vocab, (sum(_NEW),), generator=drawn),
        "positions": positions,
        "rows": starts[1:] - 1,
        "query_starts": starts.int(),
        "context_lens": torch.tensor(lengths, dtype=torch.int32),
    }
    for group, table in enumerate(shuffled):
        inputs[f"block_tables_{group}"] = table.int()
        inputs[f"slots_{group}"] = table[row, positions // block_size] * block_size + positions % block_size
    pages = reserve(taken.shapes, taken.groups, num_blocks=blocks, block_size=block_size, dtype=torch_dtype(dtype))
    for layer, (keys, values) in enumerate(pages):
        inputs[f"key_cache_{layer}"] = keys.normal_(generator=drawn)
        inputs[f"value_cache_{layer}"] = values.normal_(generator=drawn)
    return inputs

"""Captures one step of a model as a graph: transformers' module, built without weights, exported once.

``capture`` gives a ``torch.fx.GraphModule`` whose placeholders are, in this order: ``input_ids`` ``[T]``, ``positions``
``[T]``, ``rows`` ``[S]``; for each KV group g ``slots_g`` ``[T]`` and ``block_tables_g`` ``[R, B]``; ``query_starts``
``[R + 1]``, ``context_lens`` ``[R]``; for each layer l ``key_cache_l`` and ``value_cache_l``; then the constants, by
the names of the model's weights with ``_`` for ``.``. Its output is logits ``[S, vocab]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from enginebay.interfaces import Origin
from enginebay.messages import ModelInfo
from enginebay.worker.loader import torch_dtype
from enginebay.worker.loader_facts import ModelFacts, facts_of
from enginebay.worker.parallel.plan import TensorPlan, make_plan
from enginebay.worker.probing.groups import LayerGroup, arrange
from enginebay.worker.probing.probe import attention_modules
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.capture_export import export_step
from enginebay_runner_v2.capture_graph import step_graph
from enginebay_runner_v2.capture_model import stand_in
from enginebay_runner_v2.capture_writes import without_writes
from enginebay_runner_v2.passes.tensor_parallel import PLAN

__all__ = ["CapturedModel", "capture", "input_names"]


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A captured step. ``shapes``: what each layer's attention works on; ``groups``: its layers by KV group;
    ``constants``: placeholder → where its tensor comes from; ``facts``: by which the model's weights are read.
    ``plan`` and ``own_shapes`` are of one of several tensor ranks: the graph and ``shapes`` are the whole model's until
    pass ``tensor_parallel`` has run."""

    graph_module: torch.fx.GraphModule
    shapes: tuple[LayerShape, ...]
    groups: tuple[LayerGroup, ...]
    constants: Mapping[str, Origin]
    facts: ModelFacts
    own_shapes: tuple[LayerShape, ...]
    plan: TensorPlan | None = None


def capture(
    folder: Path, model: ModelInfo, *, dtype: str, max_model_len: int, tensor_rank: int = 0, tensor_size: int = 1
) -> CapturedModel:
    """Capture the model of ``folder``, whose weights are not read.

    ``dtype`` is that of weights and activations; windows of ``max_model_len`` tokens or more are none. Raises
    ``ModelError`` for a model that paged attention would not run exactly, that cannot be exported, or that cannot be
    split for ``tensor_size`` ranks, with the reason.
    """
    module, shapes = stand_in(folder, model.architecture, dtype)
    plan = make_plan(module, tensor_rank, tensor_size) if tensor_size > 1 else None
    windows = [None if (w := shape.window) is None or w >= max_model_len else w for shape in shapes]
    groups = arrange(windows, range(len(shapes)))
    attention = attention_modules(module)
    exported = without_writes(export_step(module, attention), type(module).__name__)
    graph_module, constants = step_graph(exported, module, shapes, groups)
    facts = facts_of(module, model.architecture, torch_dtype(dtype))
    own = shapes
    if plan is not None:
        graph_module.meta[PLAN] = plan
        names = {one: name for name, one in module.named_modules()}
        own = tuple(_own(shape, plan, names[one]) for shape, one in zip(shapes, attention, strict=True))
    return CapturedModel(graph_module, shapes, groups, constants, facts, own, plan)


def _own(shape: LayerShape, plan: TensorPlan, attention: str) -> LayerShape:
    """What the layer's attention works on here; attention that is not split is whole on every rank."""
    if attention not in plan.heads:
        return shape
    share = plan.heads[attention][plan.rank]
    return replace(shape, heads=len(share.queries), kv_heads=len(share.kv))


def input_names(num_groups: int) -> list[str]:
    """The placeholders that change from step to step, in order; behind them come the caches and the constants."""
    grouped = [f"{name}_{group}" for group in range(num_groups) for name in ("slots", "block_tables")]
    return ["input_ids", "positions", "rows", *grouped, "query_starts", "context_lens"]

"""Makes a model's step: capture, passes, the cut at its head. What imports transformers; a warm start does without."""

from __future__ import annotations

from pathlib import Path

from enginebay.graph import run_passes, to_record
from enginebay.interfaces import GraphContext, RunnerContext
from enginebay_runner_v2.capture import capture
from enginebay_runner_v2.cut import cut
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.prepared import PreparedStep
from enginebay_runner_v2.showing import check_passes

__all__ = ["make"]


def make(context: RunnerContext[RunnerV2Options]) -> PreparedStep:
    """See ``prepare``."""
    if context.options.verify_graph:
        check_passes(context)
    rank, size = context.place.tensor_rank, context.world.tensor_parallel_size
    captured = capture(
        Path(context.model.path),
        context.model,
        dtype=context.dtype,
        max_model_len=context.max_model_len,
        tensor_rank=rank,
        tensor_size=size,
    )
    graph_context = GraphContext(
        dtype=context.dtype,
        block_size=context.block_size,
        max_model_len=context.max_model_len,
        tensor_rank=rank,
        tensor_size=size,
        model=context.model,
        constants=dict(captured.constants),
    )
    run_passes(captured.graph_module, context.graph_passes, graph_context)
    body, head = cut(to_record(captured.graph_module, graph_context.constants))
    return PreparedStep(
        body=body,
        head=head,
        shapes=captured.own_shapes,
        groups=captured.groups,
        facts=captured.facts,
        split="" if captured.plan is None else captured.plan.words(),
    )

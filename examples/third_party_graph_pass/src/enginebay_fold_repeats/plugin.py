"""Brings the graph pass ``fold_repeats``, by a worker extension of the same name, which does nothing else."""

from __future__ import annotations

from typing import Any

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import GraphContext, GraphPass, NoOptions, WorkerExtensionContext, WorkerExtensionPlugin


def _nothing(context: WorkerExtensionContext[NoOptions]) -> None:
    """The extension has no methods, so it needs no object."""


def _apply(graph_module: Any, context: GraphContext) -> None:
    from enginebay_fold_repeats.folding import fold_repeats  # torch is imported when a graph is there, not before

    fold_repeats(graph_module.graph)


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[NoOptions]]:
    """Offer the extension, by whose name the config asks for the pass."""
    return [WorkerExtensionPlugin(name="fold_repeats", summary="Brings the graph pass fold_repeats.", factory=_nothing)]


@hookimpl
def enginebay_graph_passes() -> list[GraphPass]:
    """Offer the pass. It is exact, and knows nothing of models: any module will do."""
    return [
        GraphPass(
            name="fold_repeats",
            summary="do once what changes nothing the second time",
            apply=_apply,
            any_module=True,
        )
    ]

"""A model's step, ready as data: from the cache where it was kept, else captured, rewritten by the passes, and kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from enginebay.interfaces import RunnerContext
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.prepared import PreparedStep, key_of, read_prepared, write_prepared

__all__ = ["prepare"]

_LOG: Final = logging.getLogger("enginebay.runner.v2")


def prepare(context: RunnerContext[RunnerV2Options]) -> PreparedStep:
    """The step of ``context.model``; neither transformers nor an export is needed where it was kept.

    Raises ``ModelError`` for a model that cannot be captured, and what ``run_passes`` raises.
    """
    folder = Path(context.model.path)
    key = key_of(
        (folder / "config.json").read_bytes(),
        context.graph_passes,
        architecture=context.model.architecture,
        dtype=context.dtype,
        max_model_len=context.max_model_len,
        tensor_rank=context.place.tensor_rank,
        tensor_size=context.world.tensor_parallel_size,
    )
    kept = read_prepared(key)
    if kept is not None and not context.options.verify_graph:
        return kept
    if kept is None and context.place.rank == 0:
        _LOG.warning("capturing the model's graph, once for this machine and dtype (%s)", context.dtype)
    from enginebay_runner_v2.making import make

    prepared = make(context)
    write_prepared(key, prepared)
    return prepared

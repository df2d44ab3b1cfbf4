"""Starts one installed runner alone, as a worker would, and stops it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from enginebay.interfaces import Device, ModelRunner, RunnerCapabilities, RunnerContext, WorkerGroups
from enginebay.messages import ModelInfo, RankPlace, WorldPlan
from enginebay.models import read_model_info
from enginebay.plugins import PluginHost

__all__ = ["StartedRunner", "start_runner"]


class StartedRunner:
    """A runner with its cache ready. ``groups``: how many lists of blocks each request has."""

    def __init__(self, runner: ModelRunner[Any], capabilities: RunnerCapabilities, model: ModelInfo) -> None:
        self.runner = runner
        self.capabilities = capabilities
        self.model = model
        self.groups = 1


@contextmanager
def start_runner(
    name: str,
    folder: Path,
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    options: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    kind: str = "cpu",
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 2048,
    batch_invariant: bool = False,
    place: RankPlace | None = None,
    world: WorldPlan | None = None,
    groups: WorkerGroups | None = None,
) -> Iterator[StartedRunner]:
    """Load the runner by its installed name, take it through the worker's order, and close it at the end.

    ``num_blocks``: of each KV group; they share as many blocks as they have together. ``place``, ``world`` and
    ``groups`` make it one rank of several, whose groups have been joined.
    """
    host = PluginHost()
    loaded = host.load_runner(name, dict(options or {}))
    plugin, model = loaded.plugin, read_model_info(folder)
    context: RunnerContext[Any] = RunnerContext(
        options=loaded.options,
        model=model,
        device=_device(plugin.device(kind) if plugin.device is not None else None, kind),
        place=place or RankPlace(),
        world=world or WorldPlan(),
        dtype=dtype,
        cache_dtype=dtype,
        block_size=block_size,
        max_model_len=model.max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        seed=0,
        batch_invariant=batch_invariant,
        max_draft_tokens=plugin.capabilities.max_draft_tokens,
        groups=groups or WorkerGroups(),
        graph_passes=host.graph_passes([loaded]),
    )
    runner = plugin.factory(context)
    try:
        runner.load_model()
        started = StartedRunner(runner, plugin.capabilities, model)
        spec = runner.kv_cache_spec()
        started.groups = len(spec.groups)
        runner.initialize_kv_cache(spec.num_blocks or num_blocks * max(1, len(spec.groups)))
        runner.warm_up()
        yield started
    finally:
        runner.close()


def _device(own: Device | None, kind: str) -> Device:
    if own is None:
        from enginebay.worker.device import TorchDevice

        own = TorchDevice(kind)
    own.set_current(0)
    return own

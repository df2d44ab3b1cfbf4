"""What ranks do in the tests of the runners' splits: join a world, run models in it, and tell what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from enginebay.interfaces import WorkerGroups
from enginebay.messages import RankPlace, SamplingParams, WorldPlan
from enginebay.testing import RunnerDriver, start_runner

__all__ = ["PROMPTS", "run_models", "run_one", "world_of"]

PROMPTS = [[(31 * index + 7 * place) % 199 for place in range(5 + 9 * index)] for index in range(4)]
"""Of 5 to 32 tokens, in the vocabulary of the tiny models; the longest is beyond their windows."""


def world_of(tensor: int, pipeline: int) -> WorldPlan:
    """The plan of so many ranks, tensor ranks next to each other."""
    places = (
        RankPlace(rank=rank, local_rank=rank, tensor_rank=rank % tensor, pipeline_rank=rank // tensor)
        for rank in range(tensor * pipeline)
    )
    return WorldPlan(
        ranks=tuple(places),
        output_rank=(pipeline - 1) * tensor,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
    )


def run_models(rank: int, size: int, rendezvous: str, argument: dict[str, Any]) -> dict[str, Any]:
    """Each of ``argument["jobs"]``: (name, folder, tensor, pipeline, options of ``start_runner``, sampling).

    The world is joined once: with two ranks their one group is that of either kind. ``argument["runner"]``: whose; v1
    where nothing is said.
    """
    import torch

    from enginebay.worker.device import TorchDevice
    from enginebay.worker.distributed import join_world

    torch.set_num_threads(1)
    first = world_of(*argument["joined"])
    membership = join_world(first.ranks[rank], first, TorchDevice("cpu"), rendezvous, 60.0)
    told: dict[str, Any] = {}
    try:
        for name, folder, tensor, pipeline, options, sampling in argument["jobs"]:
            plan = world_of(tensor, pipeline)
            groups = membership.groups
            if (tensor, pipeline) != tuple(argument["joined"]):
                groups = WorkerGroups(world=groups.world, tensor=groups.pipeline, pipeline=groups.tensor)
            with start_runner(
                argument.get("runner", "v1"), Path(folder), place=plan.ranks[rank], world=plan, groups=groups, **options
            ) as started:
                told[name] = run_one(started.runner, [SamplingParams(**params) for params in sampling])
    finally:
        membership.leave()
    return told


def run_one(runner: Any, sampling: list[SamplingParams]) -> dict[str, Any]:
    """``PROMPTS`` on one runner, in chunks and shuffled blocks; what it told, as JSON has it."""
    driver = RunnerDriver(runner, num_blocks=64, block_size=16, shuffle=3)
    for index, prompt in enumerate(PROMPTS):
        driver.add(str(index), prompt, sampling[index % len(sampling)], seed=index)
    tokens = driver.run(chunk=16)
    groups = runner.kv_cache_spec().groups
    return {
        "tokens": [list(tokens[str(index)]) for index in range(len(PROMPTS))],
        "in_force": runner.in_force(),
        "layers": sorted(layer for group in groups for layer in group.layers),
        "bytes_per_block": sum(group.bytes_per_block for group in groups),
        "weights": sum(weight.numel() * weight.element_size() for weight in runner.weights().values()),
        "transformers": "transformers" in sys.modules,
        "logprobs": {key: [entry.logprob for entry in entries] for key, entries in driver.logprobs.items()},
        "prompt_logprobs": {
            key: [entry.logprob for chunk in chunks for entry in chunk.entries]
            for key, chunks in driver.prompt_logprobs.items()
        },
        "faults": driver.faults,
    }

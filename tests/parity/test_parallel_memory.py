"""Loading SmolLM2 in bf16 on one rank of two takes that rank's part of the memory, and no more.

The larger of two tensor ranks in the suite; all ranks of both kinds, and the whole, with ``-m "soak or not soak"``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import gc, json, sys
from pathlib import Path
from enginebay.worker.loader import load_causal_lm
from enginebay_runner_v1.attention import ATTENTION, register
from enginebay.worker.parallel.collectives import PipelineGroup, TensorGroup
from enginebay_runner_v1.pipeline import PipelineStage
from enginebay_runner_v1.sharding import TensorSplit
import transformers
folder, way, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return [next(int(one.split()[1]) * 1024 for one in lines if one.startswith(key)) for key in ("RssAnon", "RssFile")]
register()
transformers.LlamaForCausalLM
tensor, stage = TensorSplit(TensorGroup(None, rank, 2)), PipelineStage(PipelineGroup(None, rank, 2))
part = {"whole": None, "tensor": tensor, "pipeline": stage}[way]
gc.collect()
before = resident()
model = load_causal_lm(
    folder, architecture="LlamaForCausalLM", dtype="bfloat16", device="cpu", attention=ATTENTION, part=part
)
touched = sum(float(weight.sum()) for weight in model.parameters())
gc.collect()
copied, mapped = (now - then for now, then in zip(resident(), before))
weights = sum(weight.nbytes for weight in model.parameters())
print(json.dumps({"weights": weights, "copied": copied, "mapped": mapped, "touched": touched}))
"""
WHOLE = 269_030_016
"""Bytes of all weights."""
SLACK = 60_000_000
"""Code that is mapped when it first runs, and pages of which a part is used."""


OTHERS = (("whole", 0), ("tensor", 0), ("pipeline", 0), ("pipeline", 1))


@pytest.mark.parametrize(
    ("way", "rank"), [("tensor", 1), *(pytest.param(*one, marks=pytest.mark.soak) for one in OTHERS)]
)
def test_a_rank_loads_its_part_alone(smollm2: Path, way: str, rank: int) -> None:
    argv = [sys.executable, "-P", "-c", LOAD, str(smollm2), way, str(rank)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    told = json.loads(done.stdout)
    print(way, rank, {key: f"{value / 1e6:.0f} MB" for key, value in told.items() if key != "touched"})
    assert told["weights"] == WHOLE if way == "whole" else told["weights"] < 0.65 * WHOLE
    assert told["copied"] + told["mapped"] < told["weights"] + SLACK

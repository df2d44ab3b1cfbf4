"""``enginebay generate`` with SmolLM2 in bf16 answers as it should below 1.2 GB, and loading it keeps no second copy of
the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PEAK_LIMIT = 1_200_000_000
WEIGHTS_SHARE = 0.6

ANSWER = """
import json, resource, subprocess, sys
done = subprocess.run(
    [sys.executable, "-P", "-c", "from enginebay.cli import main; main()", "generate", "What is the capital of France?",
     "--json", "--set", f"model.path={sys.argv[1]}", "--set", "model.dtype=bfloat16"],
    capture_output=True, text=True,
)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr, "peak": peak}))
"""

LOAD = """
import json, sys
from pathlib import Path
import torch
from transformers import LlamaForCausalLM
from enginebay.worker.loader import load_causal_lm
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
before = anonymous()
model = load_causal_lm(
    Path(sys.argv[1]), architecture="LlamaForCausalLM", dtype="bfloat16", device="cpu", attention="sdpa"
)
touched = sum(float(parameter.sum()) for parameter in model.parameters())
weights = sum(parameter.nbytes for parameter in model.parameters())
print(json.dumps({"grown": anonymous() - before, "weights": weights, "touched": touched}))
"""


def in_fresh_process(code: str, *arguments: str, **environ: str) -> Any:
    """What the code prints, as JSON."""
    argv, environment = [sys.executable, "-P", "-c", code, *arguments], {**os.environ, **environ}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=240)
    return json.loads(done.stdout)


def test_the_capital_of_france_is_known_in_little_memory(smollm2: Path) -> None:
    """The first thing that anybody does: one run of the command line, whole, with two threads."""
    told = in_fresh_process(ANSWER, str(smollm2), OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive")  # others work too
    assert (told["code"], told["err"]) == (0, "")
    answer = json.loads(told["out"])
    assert "Paris" in answer["text"]
    assert answer["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
    print(f"peak {told['peak'] / 1e6:.0f} MB")
    assert told["peak"] < PEAK_LIMIT


def test_loading_keeps_no_second_copy(smollm2: Path) -> None:
    told = in_fresh_process(LOAD, str(smollm2))
    print(f"anonymous memory grew by {told['grown'] / 1e6:.0f} MB for {told['weights'] / 1e6:.0f} MB of weights")
    assert told["weights"] > 250e6
    assert told["grown"] < WEIGHTS_SHARE * told["weights"]

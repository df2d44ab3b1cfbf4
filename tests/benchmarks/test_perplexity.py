"""What weights or a KV cache in int8 cost in answers: perplexity, first greedy tokens, peak memory, beside float32's.

``python -m pytest tests/benchmarks/test_perplexity.py -m bench -s`` prints one JSON line per way to run the model. The
text is LICENSE and the pages of ``docs`` in the order of their names, its first ``PERPLEXITY_TOKENS`` (16384), in
pieces of 512. The first tokens are 16 of each of 16 prompts from ``support.parity``, beside transformers' in float32.
``PEERS_THREADS`` is the number of threads (2). All ways run on runner v2, with the same prompts, one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from enginebay.text import Tokenizer
from support.parity import Reference, cut_prompts, shipped_text
from support.repository import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).parent / "perplexity_run.py"
TOKENS = int(os.environ.get("PERPLEXITY_TOKENS", "16384"))
LENGTH, PROMPTS, NEW = 512, 16, 16
WAYS = {
    "float32": ("float32", "model", "model"),
    "bfloat16": ("bfloat16", "model", "model"),
    "int8": ("bfloat16", "int8", "model"),
    "int8 cache": ("bfloat16", "model", "int8"),
    "int8 cache, float32": ("float32", "model", "int8"),
}
"""Name → (dtype of the model, how weights are kept, and how keys and values)."""


def agreement(answers: list[list[int]], expected: list[list[int]]) -> dict[str, object]:
    """How many answers are the same to the end, and how many tokens are until the first other one, of each."""
    same = [
        next((at for at, pair in enumerate(zip(*both, strict=True)) if pair[0] != pair[1]), NEW)
        for both in zip(answers, expected, strict=True)
    ]
    return {"answers_equal": sum(one == NEW for one in same), "of": len(same), "tokens_before_another": same}


def test_perplexity(smollm2: Path, tmp_path: Path) -> None:
    pages = [ROOT / "LICENSE", *sorted((ROOT / "docs").glob("*.md"))]
    (text := tmp_path / "text").write_text("\n\n".join(page.read_text("utf-8") for page in pages), "utf-8")
    prompts = cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), PROMPTS)
    (given := tmp_path / "prompts.json").write_text(json.dumps(prompts))
    reference = Reference(smollm2)
    expected = [reference.generate(prompt, NEW) for prompt in prompts]
    base = [sys.executable, "-P", str(SCRIPT), "--model", str(smollm2), "--text", str(text), "--prompts", str(given)]
    base += ["--tokens", str(TOKENS), "--length", str(LENGTH), "--new", str(NEW)]
    print()
    exact: float | None = None
    for name, (dtype, weights, kv_cache) in WAYS.items():
        way = ["--dtype", dtype, "--weights", weights, "--kv-cache", kv_cache]
        child = subprocess.run([*base, *way], stdout=subprocess.PIPE, check=True)
        told = json.loads(child.stdout)
        exact = exact or told["perplexity"]
        line = {"figure": f"perplexity, {name}", "ours": told["perplexity"], "peer": exact}
        line |= {"ratio": round(told["perplexity"] / exact, 5), "unit": "", **agreement(told.pop("heads"), expected)}
        print(json.dumps(line | told), flush=True)

"""Decoding speed of one engine against batch and context: one JSON line per cell, as soon as it is measured.

A step's time is the difference of two answers' times, one of ``SHORT`` tokens and one of ``LONG``, over their steps:
what a request costs at its start is in both. The prompts were sent before, so that prefix hits take the place of their
prefill; no two requests have a token in common, and each reads a KV cache of its own. Prompts are so long that the
context is the asked one halfway.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time

THREADS = int(os.environ.get("PEERS_THREADS", "2"))
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

from enginebay import LLM, SamplingParams  # noqa: E402  # torch reads the variable when it is imported

SHORT, LONG, REPEATS = 8, 40, 3
SPARE = 2 * LONG
"""Tokens that a request may need beyond its context."""
VOCABULARY = 40_000


def numbers(text: str) -> list[int]:
    """Numbers with commas between, rising."""
    return sorted(int(word) for word in text.split(","))


def prompts(batch: int, context: int) -> list[list[int]]:
    """Those of a smaller batch or context are the beginnings of these."""
    length = max(1, context - (SHORT + LONG) // 2)
    return [random.Random(number).choices(range(VOCABULARY), k=length) for number in range(batch)]


def seconds(llm: LLM, asked: list[list[int]], n: int) -> float:
    """How long ``n`` tokens for each of them take."""
    begin = time.perf_counter()
    done = llm.generate(asked, SamplingParams(max_tokens=n, ignore_eos=True))
    taken = time.perf_counter() - begin
    assert all(len(answer.token_ids) == n for answer in done), "an answer ended early"
    return taken


def cell(llm: LLM, batch: int, context: int) -> dict[str, object]:
    """The speed at one size."""
    asked = prompts(batch, context)
    seconds(llm, asked, 1)
    steps = []
    for _ in range(REPEATS):
        short = seconds(llm, asked, SHORT)
        steps.append((seconds(llm, asked, LONG) - short) / (LONG - SHORT))
    assert min(steps) > 0, f"the machine is not quiet: steps of {steps} s"
    step = statistics.median(steps)
    return {
        "batch": batch,
        "context": context,
        "step_ms": round(step * 1e3, 3),
        "tok_s": round(batch / step, 1),
        "tok_s_spread": [round(batch / max(steps), 1), round(batch / min(steps), 1)],
    }


def main() -> None:
    """Start the engine once, measure all sizes that fit."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="folder of the model")
    ap.add_argument("--runner", default="v2")
    ap.add_argument("--batches", type=numbers, required=True)
    ap.add_argument("--contexts", type=numbers, required=True)
    ap.add_argument("--tokens", type=int, required=True, help="batch times context, at most")
    args = ap.parse_args()
    sizes = [(b, c) for c in args.contexts for b in args.batches if b * c <= args.tokens]
    block = 16
    blocks = max(b * (-(-(c + SPARE) // block) + 1) for b, c in sizes)
    sets = [
        f"model.path={args.model}",
        "model.dtype=bfloat16",
        f"model.max_model_len={args.contexts[-1] + SPARE}",
        f"runner.use={args.runner}",
        *(["runner.options.compile=wait"] if args.runner == "v2" else []),
        f"worker.threads={THREADS}",
        f"scheduler.max_num_seqs={args.batches[-1]}",
        f"cache.block_size={block}",
        f"cache.num_blocks={blocks}",
        "cache.prefix_caching=true",
    ]
    with LLM(sets=sets) as llm:
        seconds(llm, prompts(1, args.contexts[0]), LONG)  # the warm-up
        for batch, context in sizes:
            print(json.dumps(cell(llm, batch, context)), flush=True)


if __name__ == "__main__":
    main()

"""Two engines take turns, one with statuses and heartbeats and one without; prints a JSON line for each pair of turns.

Seconds of the same answers. ``--plain-first`` makes the one without before the other, since it matters which of two
engines of a process is older. ``--alone`` has one engine, with both, and prints the seconds of its median step instead.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from time import monotonic

from enginebay import LLM, SamplingParams

PROMPT, TOKENS, VOCABULARY = 32, 64, 40_000
WITHOUT = ["status.sinks=[]", "deadlines.heartbeat=100000"]


def engine(model: str, requests: int, sets: list[str]) -> LLM:
    """With a worker of its own."""
    blocks = requests * -(-(PROMPT + TOKENS) // 16)
    own = [f"model.path={model}", "executor.use=mp", f"cache.num_blocks={blocks}", "runner.options.compile=wait"]
    return LLM(sets=[*own, f"scheduler.max_num_seqs={requests}", *sets])


def turn(llm: LLM, prompts: list[list[int]]) -> float:
    """Seconds of the answers to all prompts; none of them is found in the cache."""
    llm.reset_prefix_cache()
    begun = monotonic()
    llm.generate(prompts, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    return monotonic() - begun


def step_of(llm: LLM, prompt: list[int], others: list[list[int]]) -> float:
    """Seconds between two tokens of a request that stands among others: the median."""
    import threading

    beside = threading.Thread(target=turn, args=(llm, others))
    beside.start()
    came = [monotonic() for _ in llm.stream(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))]
    beside.join()
    return median(b - a for a, b in pairwise(came))


def main() -> None:
    """See the module."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="folder of the model")
    ap.add_argument("--requests", type=int, required=True)
    ap.add_argument("--pairs", type=int, default=10)
    ap.add_argument("--alone", action="store_true")
    ap.add_argument("--plain-first", action="store_true")
    args = ap.parse_args()
    draw = random.Random(0)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(args.requests)]
    with ExitStack() as stack:

        def made(sets: list[str]) -> LLM:
            return stack.enter_context(engine(args.model, args.requests, sets))

        if args.alone:
            print(json.dumps({"step": step_of(made([]), prompts[0], prompts[1:])}))
            return
        if args.plain_first:
            plain, watched = made(WITHOUT), made([])
        else:
            watched, plain = made([]), made(WITHOUT)
        turn(watched, prompts)
        turn(plain, prompts)
        for number in range(args.pairs):
            first, second = (watched, plain) if number % 2 else (plain, watched)
            taken = {id(one): turn(one, prompts) for one in (first, second)}
            print(json.dumps({"with": taken[id(watched)], "without": taken[id(plain)]}), flush=True)
            print(f"pair {number + 1} of {args.pairs}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

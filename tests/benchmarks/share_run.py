"""Where the time of a steady decode step goes: one JSON line per number of requests (see ``test_step_share``).

The engine, its worker and its kernels run in this process. Clocks stand around the runner's call and around every run
of a program; what a program spends between its operators is that of one with as many calls that do next to nothing. A
step's length is the time between the ends of two of the runner's calls, waiting included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

THREADS = int(os.environ.get("PEERS_THREADS", "2"))
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

import torch  # noqa: E402  # it reads the variable when it is imported

from enginebay import LLM, SamplingParams  # noqa: E402  # as torch
from enginebay_runner_v2.execution import NativePart  # noqa: E402  # as torch
from enginebay_runner_v2.runner import RunnerV2  # noqa: E402  # as torch

TOKENS, EDGE = 80, 16
"""Answers are so long, and so many steps at their beginning and at their end are not counted."""


class Clocks:
    """Of each step, when its answer was made, and seconds: of the runner's call, of its programs, and what processor
    time the worker's thread had taken by then, outside of programs and in them."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, ...]] = []
        self.programs = self.inside = 0.0
        self.calls = 0
        """Of operators, in a step."""
        self._programs: set[int] = set()
        self._wrap(NativePart, "run", self._after_program)
        self._wrap(RunnerV2, "execute_model", self._after_step)

    def _wrap(self, owner: type[Any], name: str, after: Callable[[Any, float, float], None]) -> None:
        plain = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            begin, own = time.perf_counter(), time.thread_time()
            result = plain(*arguments)
            after(arguments[0], time.perf_counter() - begin, time.thread_time() - own)
            return result

        setattr(owner, name, timed)

    def _after_program(self, part: NativePart, seconds: float, own: float) -> None:
        if id(part) not in self._programs:
            self._programs.add(id(part))
            self.calls += len(part._program.calls())
        self.programs += seconds
        self.inside += own

    def _after_step(self, runner: RunnerV2, seconds: float, own: float) -> None:
        self.steps.append((time.perf_counter(), seconds, self.programs, time.thread_time() - self.inside, self.inside))
        self.programs = 0.0


def dispatch_seconds(calls: int) -> float:
    """What that many calls cost a program beside what they compute: each adds two numbers here."""
    nodes = [
        {"name": f"n{i}", "op": "aten::add.Tensor", "args": [{"ref": f"n{i - 1}" if i else "x"}, {"ref": "x"}]}
        for i in range(calls)
    ]
    record = {"format": 1, "inputs": ["x"], "constants": [], "nodes": nodes, "outputs": [f"n{calls - 1}"]}
    program: Any = torch.classes.enginebay.Program(json.dumps(record))
    x, taken = torch.ones(1), []
    for _ in range(50):
        begin = time.perf_counter()
        program.run([x])
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def figures(llm: LLM, clocks: Clocks, batch: int, params: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of the median step, and its shares in percent."""
    draw = random.Random(batch)
    lengths = [128] if batch == 1 else [32 + 224 * index // (batch - 1) for index in range(batch)]
    prompts = [draw.choices(range(40_000), k=length) for length in lengths]
    asked = SamplingParams(max_tokens=TOKENS, ignore_eos=True, **params)
    llm.generate(prompts, asked)
    clocks.steps.clear()
    llm.generate(prompts, asked)
    steps = clocks.steps[-TOKENS + EDGE : -EDGE]
    pairs = list(pairwise(steps))
    periods, outside, inside = ([after[at] - before[at] for before, after in pairs] for at in (0, 3, 4))
    step, programs = statistics.median(periods), statistics.median(one[2] for one in steps)
    own, within = statistics.median(outside), statistics.median(inside)
    between = dispatch_seconds(clocks.calls)
    return {
        "cpu": round(100 * (own + between) / (own + within), 2),
        "wall": round(100 * (1 - (programs - between) / step), 2),
        "threads": THREADS,
        "step_ms": round(step * 1e3, 3),
        "runner_ms": round(statistics.median(one[1] for one in steps) * 1e3, 3),
        "programs_ms": round(programs * 1e3, 3),
        "dispatch_ms": round(between * 1e3, 3),
        "outside_cpu_ms": round(own * 1e3, 3),
    }


def main() -> None:
    """Start the engine once, and measure each number of requests."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="folder of the model")
    ap.add_argument("--batches", default="1,64")
    ap.add_argument("--sampling", default="{}", help="JSON of sampling parameters")
    args = ap.parse_args()
    sets = [
        f"model.path={args.model}",
        "model.dtype=bfloat16",
        "model.max_model_len=512",
        "runner.use=v2",
        "runner.options.compile=wait",
        f"worker.threads={THREADS}",
        "scheduler.max_num_seqs=64",
        "cache.num_blocks=2048",
        "executor.use=uni",
    ]
    clocks = Clocks()
    with LLM(sets=sets) as llm:
        for batch in map(int, args.batches.split(",")):
            print(json.dumps({"batch": batch, **figures(llm, clocks, batch, json.loads(args.sampling))}), flush=True)


if __name__ == "__main__":
    main()

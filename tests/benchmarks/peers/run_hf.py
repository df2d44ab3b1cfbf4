"""Hugging Face transformers: ``generate()`` on left-padded batches, or ``--mode cb`` (paged)."""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from typing import Any

from common import THREADS, main, model_dir, parser

PAD = 2

ap = parser(__doc__, ["fp32", "bf16"])
ap.add_argument("--mode", default="static", choices=["static", "cb"])
ap.add_argument("--batch", type=int, default=64, help="static mode: requests per batch")
ap.add_argument("--attn", default=None)
args = ap.parse_args()


class Stamps:
    """A streamer that keeps the times alone."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, ids: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


class HF:
    """Greedy answers of exact lengths."""

    def __init__(self, a: argparse.Namespace) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(THREADS)
        self._torch = torch
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[a.precision]
        attention = a.attn or ("paged|sdpa" if a.mode == "cb" else "sdpa")
        self._model = AutoModelForCausalLM.from_pretrained(
            model_dir(a), dtype=dtype, attn_implementation=attention
        ).eval()

    def _generate(self, prompts: list[list[int]], n: int, streamer: Stamps | None = None) -> list[list[int]]:
        torch = self._torch
        width = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=n,
                max_new_tokens=n,
                eos_token_id=None,
                pad_token_id=PAD,
                streamer=streamer,
            )
        made: list[list[int]] = out[:, width:].tolist()
        return made

    def stream(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        stamps = Stamps()
        ids = self._generate([prompt], n, stamps)[0]
        return ids, stamps.times[1:]  # the first put() is the prompt

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        if args.mode == "static":
            out = []
            for begin in range(0, len(prompts), args.batch):
                out += self._generate(prompts[begin : begin + args.batch], n)
            return out
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=False, max_new_tokens=n, eos_token_id=-1, pad_token_id=PAD)
        answers = self._model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        return [list(answer.generated_tokens) for answer in answers.values()]


if __name__ == "__main__":
    main(
        f"transformers-{args.mode}",
        f"{version('transformers')} torch {version('torch')}",
        HF,
        args,
        {"batch": args.batch, "attn": args.attn} if args.mode == "static" else {"attn": args.attn or "paged|sdpa"},
    )

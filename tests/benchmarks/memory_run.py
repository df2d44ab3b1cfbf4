"""One engine that answers so many requests; prints a JSON line when it is done (see ``test_memory``)."""

from __future__ import annotations

import argparse
import json
import random

from enginebay import LLM, SamplingParams

VOCABULARY = 40_000


def main() -> None:
    """Prompts of 128 tokens for one request, of 32 to 256 for several; 128 tokens each come out."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="folder of the model")
    ap.add_argument("--requests", type=int, required=True)
    ap.add_argument("--set", dest="sets", action="append", default=[], help="SECTION.KEY=VALUE")
    args = ap.parse_args()
    count, draw = args.requests, random.Random(0)
    lengths = [128] if count == 1 else [32 + 224 * index // (count - 1) for index in range(count)]
    blocks = sum(-(-(length + 128) // 16) for length in lengths)
    sets = [
        f"model.path={args.model}",
        "model.dtype=bfloat16",
        f"model.max_model_len={max(lengths) + 128}",
        "runner.options.compile=wait",
        f"cache.num_blocks={blocks}",
        *args.sets,
    ]
    with LLM(sets=sets) as llm:
        prompts = [draw.choices(range(VOCABULARY), k=length) for length in lengths]
        done = llm.generate(prompts, SamplingParams(max_tokens=128, ignore_eos=True))
    assert all(len(answer.token_ids) == 128 for answer in done)
    print(json.dumps({"requests": count, "blocks": blocks}))


if __name__ == "__main__":
    main()

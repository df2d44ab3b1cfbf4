"""One engine over a fixed text: its perplexity, its first greedy tokens, the speed of both, its memory. One JSON line.

The text is cut into pieces, each a prompt of its own; the perplexity is that of their tokens but each piece's first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

THREADS = int(os.environ.get("PEERS_THREADS", "2"))
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

from enginebay import LLM, SamplingParams  # noqa: E402  # torch reads the variable when it is imported
from enginebay.text import Tokenizer  # noqa: E402  # as above

AT_ONCE = 8
"""Pieces that are sent together."""


def scored(llm: LLM, pieces: Sequence[Sequence[int]]) -> tuple[float, int]:
    """The sum of the tokens' log-probabilities, and how many there are."""
    total, count = 0.0, 0
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for begin in range(0, len(pieces), AT_ONCE):
        for done in llm.generate(pieces[begin : begin + AT_ONCE], params):
            assert done.prompt_logprobs is not None, "the request ended early"
            told = [entry.logprob for entry in done.prompt_logprobs if entry is not None]
            total, count = total + math.fsum(told), count + len(told)
    return total, count


def main() -> None:
    """Start the engine, take the first tokens, then the perplexity."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="folder of the model")
    ap.add_argument("--text", required=True, help="file")
    ap.add_argument("--prompts", required=True, help="file: a JSON list of lists of token ids")
    ap.add_argument("--tokens", type=int, required=True, help="of the text, at most")
    ap.add_argument("--length", type=int, required=True, help="tokens of a piece")
    ap.add_argument("--new", type=int, required=True, help="tokens of an answer")
    ap.add_argument("--dtype", default="bfloat16")
    ap.add_argument("--weights", default="model")
    ap.add_argument("--kv-cache", default="model")
    args = ap.parse_args()
    ids = Tokenizer.from_folder(Path(args.model)).encode(Path(args.text).read_text("utf-8"))[: args.tokens]
    pieces = [ids[at : at + args.length] for at in range(0, len(ids), args.length)]
    prompts = json.loads(Path(args.prompts).read_text())
    sets = [
        f"model.path={args.model}",
        f"model.dtype={args.dtype}",
        f"model.max_model_len={max(args.length + 1, *(len(prompt) + args.new for prompt in prompts))}",
        "runner.use=v2",
        "runner.options.compile=wait",
        f"runner.options.weights={args.weights}",
        f"runner.options.kv_cache={args.kv_cache}",
        f"worker.threads={THREADS}",
        f"scheduler.max_num_seqs={AT_ONCE}",
        f"cache.num_blocks={AT_ONCE * (args.length // 16 + 8)}",
        "executor.use=uni",
    ]
    with LLM(sets=sets) as llm:
        heads = []
        decoding = 0.0
        for prompt in prompts:
            begin = time.process_time()
            (done,) = llm.generate([prompt], SamplingParams(max_tokens=args.new, ignore_eos=True))
            decoding += time.process_time() - begin
            heads.append(list(done.token_ids))
        begin = time.process_time()
        total, count = scored(llm, pieces)
        scoring = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = {"perplexity": round(math.exp(-total / count), 4), "tokens": count, "heads": heads}
    line |= {"decode_cpu_s": round(decoding, 2), "score_cpu_s": round(scoring, 2), "peak_mb": round(peak / 2**20)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()

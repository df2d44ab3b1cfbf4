"""Complete prompts on the ranks of a world that a launcher has started; each rank has the whole answer.

Start it with::

    torchrun --nproc-per-node 2 examples/torchrun_generate.py ["a prompt" …]

Every rank runs the same program, and gives its engine the same requests in the same order. Only rank 0 prints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from enginebay import LLM, EnginebayError, SamplingParams

CONFIG = Path(__file__).with_name("engine.external_launcher.toml")
PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time"]


def main(prompts: list[str]) -> None:
    """Generate on every rank; print on the first."""
    with LLM(CONFIG) as llm:
        completions = llm.generate(prompts, SamplingParams(max_tokens=24))
    if os.environ["RANK"] == "0":
        for completion in completions:
            print(f"{completion.prompt}{completion.text}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:] or PROMPTS)
    except EnginebayError as error:
        print(f"rank {os.environ.get('RANK', '?')}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

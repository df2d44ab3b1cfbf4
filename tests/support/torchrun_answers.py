"""Answers of a config on two ranks of torchrun: every rank's token ids, for tables of executors that must agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay import LLM, SamplingParams
from support.launched import TORCHRUN
from support.repository import ROOT

Answers = list[list[int]]


def torchrun_answers(
    folder: Path, configs: Sequence[Mapping[str, Any]], prompts: Sequence[Sequence[Sequence[int]]], max_tokens: int
) -> list[list[Answers]]:
    """For each config (of two ranks, with executor ``external_launcher``) and its prompts, what each rank answers.

    One start of torchrun runs all of them; greedy, and past the end of sequence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "asked.json").write_text(json.dumps([list(configs), list(prompts), max_tokens]))
    done = subprocess.run(
        [*TORCHRUN, "-m", "support.torchrun_answers", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return [[rank[index] for rank in ranks] for index in range(len(configs))]


def main(folder: Path) -> None:
    """One rank's part of it."""
    configs, prompts, max_tokens = json.loads((folder / "asked.json").read_text())
    answers: list[Answers] = []
    for config, asked in zip(configs, prompts, strict=True):
        with LLM(config) as llm:
            ended = llm.generate(asked, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        answers.append([list(one.token_ids) for one in ended])
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

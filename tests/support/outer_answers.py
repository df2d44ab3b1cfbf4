"""Answers of an engine that runs outside of the tests' own process, for tables of executors that must agree.

``python -m support.outer_answers FOLDER`` is that process: it reads ``asked.json`` and writes its answers, by rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from enginebay import LLM, SamplingParams
from support.launched import TORCHRUN
from support.outside import EXAMPLES, build_wheel
from support.repository import ROOT

__all__ = ["dask_answers", "torchrun_answers"]

Answers = list[list[int]]
Prompts = Sequence[Sequence[int]]


def torchrun_answers(folder: Path, sets: Sequence[str], prompts: Prompts, max_tokens: int) -> list[Answers]:
    """What each of two ranks of torchrun answers; ``sets`` choose ``external_launcher`` and a world of two.

    Greedy, and past the end of sequence.
    """
    return _ask(folder, TORCHRUN, (ROOT / "tests",), sets, prompts, max_tokens, 2)


def dask_answers(folder: Path, sets: Sequence[str], prompts: Prompts, max_tokens: int) -> Answers:
    """What an engine answers that finds the example executor ``dask`` installed on its path. As above."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel, site = build_wheel(EXAMPLES / "third_party_executor", folder), folder / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    subprocess.run(pip, check=True, timeout=120)
    [answers] = _ask(folder, [sys.executable], (ROOT / "tests", site), sets, prompts, max_tokens, 1)
    return answers


def _ask(
    folder: Path,
    start: Sequence[str],
    path: Sequence[Path],
    sets: Sequence[str],
    prompts: Prompts,
    max_tokens: int,
    ranks: int,
) -> list[Answers]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "asked.json").write_text(json.dumps([list(sets), list(map(list, prompts)), max_tokens]))
    done = subprocess.run(
        [*start, "-m", "support.outer_answers", str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _main(folder: Path) -> None:
    sets, prompts, max_tokens = json.loads((folder / "asked.json").read_text())
    with LLM(sets=sets) as llm:
        ended = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    answers = [list(one.token_ids) for one in ended]
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

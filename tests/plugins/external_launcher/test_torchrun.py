"""Real ranks under ``torchrun --nproc-per-node 2``; one start of it runs many scenarios (``support.launched``)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from support.fake_engine import fake_model_folder
from support.launched import EXAMPLE, EXAMPLE_PROMPTS, PROMPTS, TORCHRUN, site, tiny_answers
from support.repository import ROOT
from support.tiny_models import make_model

SCENARIOS = (
    "same",
    "left",
    "owned",
    "marked",
    "split",
    "example",
    "blocks",
    "terms",
    "fails",
    "timed",
    "differ",
    "torn",
    "alone",
    "last",
)


@dataclass(frozen=True)
class Run:
    """One start of torchrun: its exit code, what it printed, and what each scenario came to on each rank."""

    folder: Path
    code: int
    stdout: str
    stderr: str
    came: dict[str, tuple[Any, Any]]


def torchrun(*arguments: str | Path, path: str) -> subprocess.CompletedProcess[str]:
    """Run a program on two ranks."""
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, *map(str, arguments)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("launched")
    model, out = fake_model_folder(folder / "model"), folder / "out"
    out.mkdir()
    make_model(folder / "model-tiny", "llama")
    path = os.pathsep.join([str(site(folder / "site")), str(ROOT / "tests")])
    done = torchrun("-m", "support.launched", out, model, *SCENARIOS, path=path)
    print(done.stderr)  # how long each took; shown when a test fails
    ranks = [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]
    came = {name: (ranks[0].get(name), ranks[1].get(name)) for name in SCENARIOS}
    return Run(folder, done.returncode, done.stdout, done.stderr, came)


def test_both_ranks_draw_the_same_with_seeds_that_they_agreed_on(run: Run) -> None:  # X17
    zero, one = run.came["same"]
    assert zero == one
    texts = zero["texts"]
    assert len(texts) == len(PROMPTS) + 1 == len(set(texts))
    assert all(re.fullmatch(r"\d{20}", text) for text in texts)


def test_the_worker_extension_is_in_each_rank(run: Run) -> None:  # P6
    for rank, (told,) in enumerate(run.came["marked"]):
        assert (told["mark"], told["rank"], told["runner"]) == ("seen", rank, "LaunchedRunner")
        assert told["pid"] == told["here"]  # the worker is in the rank's own process


def test_the_world_is_made_where_there_is_none_and_taken_away_again(run: Run) -> None:
    assert [came["world"] for came in run.came["same"]] == [[False, True]] * 2
    assert run.came["left"] == (False, False)


def test_a_world_that_has_an_owner_is_left_to_it(run: Run) -> None:
    assert run.came["owned"] == ({"sum": 2.0, "num": len(PROMPTS) + 1},) * 2


@pytest.fixture(scope="module")
def alone(run: Run) -> tuple[list[str], list[str]]:
    """What one worker answers: to the tiny prompts, and to the example's, as it prints them."""
    with LLM({"model": {"path": str(run.folder / "model-tiny"), "dtype": "float32"}}) as llm:
        printed = llm.generate(EXAMPLE_PROMPTS, SamplingParams(max_tokens=24))
        return tiny_answers(llm), [f"{one.prompt}{one.text}" for one in printed]


def test_tensor_ranks_and_stages_answer_as_one_worker_does(run: Run, alone: tuple[list[str], list[str]]) -> None:  # X17
    assert run.came["split"] == ([alone[0], alone[0]],) * 2


def test_the_example_prints_the_answers_once(run: Run, alone: tuple[list[str], list[str]]) -> None:
    assert run.stdout.splitlines() == alone[1]


def test_the_example_without_a_launcher_says_what_to_do() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "rank ?: executor 'external_launcher' runs where a launcher has started one process per rank, and RANK, "
    )
    assert "start the program with 'torchrun --nproc-per-node N program.py'" in done.stderr


def test_the_fewest_blocks_of_all_ranks_are_in_force(run: Run) -> None:
    assert run.came["blocks"] == ("48 (the fewest of all ranks: those of rank 1)", "48 ([cache] num_blocks)")


def test_configs_that_differ_are_refused_on_every_rank(run: Run) -> None:
    told = (
        "the ranks do not agree on [scheduler] max_num_seqs: it is 4 on rank 0, and 5 on rank 1: start every rank with "
        "the same config and the same packages"
    )
    assert run.came["terms"] == ({"error": "StartFailed", "message": told, "exit_code": 3},) * 2


def test_a_start_that_fails_on_one_rank_ends_the_others(run: Run) -> None:
    zero, one = run.came["fails"]
    assert (one["error"], one["exit_code"]) == ("OutOfMemory", 3)
    told = "the start failed: the engine of rank 1 has ended, and did not come to compare its blocks"
    assert zero == {"error": "StartFailed", "message": told, "exit_code": 3}


def test_a_timeout_is_refused_by_name(run: Run) -> None:
    told = (
        "timeout cannot be kept: executor 'external_launcher' runs one scheduler per rank, and their clocks differ; "
        "leave it out, and bound max_tokens"
    )
    assert run.came["timed"] == ({"error": "InvalidRequest", "message": told, "exit_code": 1},) * 2


DIFFERENT = (
    "the engine stopped: the schedules of the ranks differ from step 8 on: rank 0 ran 7 tokens of 2 requests, and "
    "rank 1 8 tokens of 2 requests: every rank must be given the same requests, in the same order, between the same "
    "steps"
)


def test_ranks_whose_schedules_differ_are_stopped_at_the_first_such_step(run: Run) -> None:  # X17
    assert run.came["differ"] == ({"error": "EngineDead", "message": DIFFERENT, "exit_code": 70},) * 2


def test_a_collective_that_fails_is_told_by_the_schedules_that_it_failed_of(run: Run) -> None:  # X17
    zero, one = run.came["torn"]
    assert zero == one
    told = (
        r"the engine stopped: the schedules of the ranks differ from step \d+ on: rank 0 ran 7 tokens of 1 request, .*"
    )
    assert re.fullmatch(told, zero["message"])


def test_a_rank_that_was_asked_nothing_is_not_waited_for(run: Run) -> None:
    told = "the engine stopped: the engine of rank 1 has ended, and did not come to compare its schedules"
    assert run.came["alone"] == ({"error": "WorkerLost", "message": told, "exit_code": 4}, None)


def test_the_difference_ends_the_program_when_nobody_catches_it(run: Run) -> None:  # X17
    assert run.code != 0
    assert run.came["last"] == (None, None)
    assert f"enginebay.errors.EngineDead: {DIFFERENT}" in run.stderr

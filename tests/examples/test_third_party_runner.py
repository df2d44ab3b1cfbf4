"""The example runner works as a stranger's would: found by its metadata, driven by the engine, and by its own tests."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from support.repository import ROOT

EXAMPLE = ROOT / "examples" / "third_party_runner"
VOCAB = 1000
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def offer(folder: Path) -> Path:
    """The metadata that an installation of the example would leave."""
    about = folder / "enginebay_abacus-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: enginebay-abacus\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[enginebay.runners]\nabacus = enginebay_abacus.plugin\n")
    return folder


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's own test module, which makes model folders, with the example as good as installed."""
    for folder in (offer(tmp_path / "site"), EXAMPLE / "src", EXAMPLE / "tests"):
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("test_abacus")
    for name in [name for name in sys.modules if name.startswith(("enginebay_abacus", "test_abacus"))]:
        del sys.modules[name]


def engine(folder: Path, *sets: str) -> LLM:
    return LLM(sets=[f"model.path={folder}", "runner.use=abacus", *sets])


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    return [[(i * 7 + j * j + seed) % VOCAB for j in range(10 + i % 50)] for i in range(count)]


def test_its_own_tests_pass(tmp_path: Path) -> None:
    path = os.pathsep.join([str(offer(tmp_path / "site")), str(EXAMPLE / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_engine_gives_the_answers_reckoned_beforehand(example: Any, tmp_path: Path) -> None:
    """Also under preemption, in chunks and from a warm cache: any mistake with a block changes the answer."""
    asked = prompts(60)
    expected = [example.answer(prompt, 8, VOCAB) for prompt in asked]
    sets = ["cache.num_blocks=12", "cache.block_size=8", "scheduler.max_num_batched_tokens=20"]
    with engine(example.make_folder(tmp_path / "model"), *sets) as llm:
        cold = llm.generate(asked, PARAMS)
        warm = llm.generate(asked[-1:] * 3, PARAMS)
        stats = llm.stats().scheduler
    assert [list(completion.token_ids) for completion in cold] == expected
    assert [list(completion.token_ids) for completion in warm] == expected[-1:] * 3
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0


@pytest.mark.parametrize("thousands", [4, pytest.param(10, marks=pytest.mark.soak)])
def test_thousands_of_requests_leave_nothing(example: Any, tmp_path: Path, thousands: int) -> None:
    """Memory does not grow between the 2,000th request and the last, and all blocks are free at the end."""
    with engine(example.make_folder(tmp_path / "model"), "cache.num_blocks=600") as llm:
        blocks = []
        for batch in range(thousands):
            asked = prompts(1000, seed=batch)
            answers = llm.generate(asked, PARAMS)
            assert [len(answer.token_ids) for answer in answers] == [8] * 1000
            del answers, asked
            llm.generate([[1]], PARAMS)  # the engine's threads still hold the last step: one request's, not a batch's
            gc.collect()
            blocks.append(sys.getallocatedblocks())  # all of Python's small objects; tracemalloc is four times slower
        stats = llm.stats()
    assert stats.finished == 1001 * thousands
    assert stats.committed_tokens == 8 * 1001 * thousands
    assert stats.scheduler.num_free_blocks == stats.scheduler.num_blocks == 600
    assert max(blocks[2:]) - blocks[1] < 1000, blocks  # one object kept per request would be 8,000

"""Runner v2 on real ranks: the tokens of one rank and of v1's, kept graphs without transformers, and lost peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.messages import SamplingParams
from enginebay.testing import start_runner
from support.parity import Reference
from support.rank_models import PROMPTS, run_one
from support.ranks import Herd
from support.tiny_models import make_model

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "gemma2": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
}
"""KV heads shared out and a tied head; scaled embeddings, windows of some layers, caps."""
RUN = "support.rank_models:run_models"
SAMPLING: list[dict[str, Any]] = [
    {"max_tokens": 10, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1},
    {"max_tokens": 10, "temperature": 1.0, "top_p": 0.9, "ignore_eos": True},
]
NATIVE = {"options": {"compile": "wait"}}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def herd() -> Iterator[Herd]:
    with Herd(
        "support.rank_models", "support.rank_steps", "enginebay_runner_v2.runner", "enginebay.worker.device"
    ) as h:
        yield h


def ranks_of(herd: Herd, folder: Path, jobs: list[list[Any]], runner: str = "v2", size: int = 2) -> list[Any]:
    return herd.run(RUN, size, {"joined": [size, 1], "jobs": jobs, "runner": runner}, folder, 600)


def test_two_ranks_have_the_tokens_of_one_and_of_v1(herd: Herd, tmp_path: Path) -> None:
    """The second time each rank finds its graph, and imports no transformers. S13"""
    folders = {family: make_model(tmp_path / family, family, **small) for family, small in FAMILIES.items()}
    jobs = [[family, str(folder), 2, 1, NATIVE, SAMPLING] for family, folder in folders.items()]
    first, second = ranks_of(herd, tmp_path / "first", jobs)
    again, _ = ranks_of(herd, tmp_path / "again", jobs)
    assert [told["transformers"] for told in again.values()] == [False] * len(jobs)
    theirs, _ = ranks_of(herd, tmp_path / "v1", [[*jobs[0][:4], {}, SAMPLING]], "v1")
    assert theirs["llama"]["tokens"] == first["llama"]["tokens"]
    assert theirs["llama"]["in_force"]["tensor parallel"] == first["llama"]["in_force"]["tensor parallel"]
    for family in FAMILIES:
        with start_runner("v2", folders[family], **NATIVE) as started:  # type: ignore[arg-type]  # its options alone
            alone = run_one(started.runner, [SamplingParams(**params) for params in SAMPLING])
        for told in (first[family], second[family], again[family]):
            assert told["tokens"] == alone["tokens"], family
            assert told["faults"] == {}, family
        for what in ("logprobs", "prompt_logprobs"):
            for key, values in alone[what].items():
                assert second[family][what][key] == pytest.approx(values, abs=1e-4)
        assert first[family]["in_force"]["execution"] == "graph, native"
        parts = [told[family]["weights"] for told in (first, second)]
        assert max(parts) < 0.8 * alone["weights"], family


def test_ranks_agree(herd: Herd, tmp_path: Path) -> None:
    first, second = herd.run("support.rank_steps:agree", 2, None, tmp_path)
    assert first == {
        "all": True,
        "first": False,
        "heard": "another rank of the world failed to load its part of the model: see its error",
    }
    assert second == {"all": True, "first": False, "heard": "torn"}


@pytest.mark.parametrize("native", [True, False])
def test_a_lost_rank_is_named(herd: Herd, tmp_path: Path, native: bool) -> None:
    with herd.ranks("support.rank_steps:lose_one", 2, {"native": native}, tmp_path) as ranks:
        told = ranks.answer(0, 300)
    assert told["sum"] == [[11.0] * 3] * 2
    assert told["all"] == [[1.0, 1.0, 1.0, 10.0, 10.0, 10.0]] * 2
    assert told["x"] == [[1.0] * 3] * 2, "what is summed is not written to"
    assert told["heard"].startswith("rank 1 was lost to rank 0 in a collective (")
    assert "it has ended, failed, or is stuck: " in told["heard"]


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 3])
def test_smollm2(herd: Herd, smollm2: Path, tmp_path: Path, size: int) -> None:
    """Nine query heads and three KV heads, on 2 ranks unevenly."""
    greedy = {"max_tokens": 24, "ignore_eos": True}
    options = {**NATIVE, "max_num_batched_tokens": 512}
    ranks = ranks_of(herd, tmp_path, [["smollm2", str(smollm2), size, 1, options, [greedy]]], size=size)
    tokens = [told["smollm2"]["tokens"] for told in ranks]
    assert all(each == tokens[0] for each in tokens)
    Reference(smollm2).compare(PROMPTS, tokens[0]).check()
    split = "3+6 query heads, 1+2 KV heads" if size == 2 else "3+3+3 query heads, 1+1+1 KV heads"
    assert ranks[0]["smollm2"]["in_force"]["tensor parallel"] == split

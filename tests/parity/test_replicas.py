"""Copies of a real model, in threads and in processes, also one that was added later: the same tokens as of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay import LLM, SamplingParams
from enginebay.engine.replicas.replicas import ReplicaSet
from support.tiny_models import make_model

PROMPTS = [[i + 1, 7, i * 3 % 50 + 1, 9] for i in range(8)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder: Path = make_model(tmp_path_factory.mktemp("replicas") / "model", "llama")
    return [f"model.path={folder}", "model.dtype=float32", "cache.num_blocks=64"]


@pytest.fixture(scope="module")
def expected(sets: list[str]) -> list[tuple[int, ...]]:
    with LLM(sets=sets) as llm:
        return [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)]


def shares(llm: LLM) -> list[int]:
    """How many requests each group has ended."""
    port = llm._front.client
    assert isinstance(port, ReplicaSet)
    return [client.stats().finished for client in port._clients]


def test_two_threads(sets: list[str], expected: list[tuple[int, ...]]) -> None:
    with LLM(sets=[*sets, "parallel.data_parallel_size=2"]) as llm:
        assert [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)] == expected
        assert shares(llm) == [4, 4]


def test_a_process_and_one_that_has_its_weights_from_it(sets: list[str], expected: list[tuple[int, ...]]) -> None:
    with LLM(sets=[*sets, "executor.use=mp"]) as llm:
        assert [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.grow() == 2
        assert [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)] == expected
        assert min(shares(llm)) > 0

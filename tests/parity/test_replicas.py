"""Copies of a real model, in threads and in processes, also one that was added later: the same tokens as of one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.engine.replicas.replicas import ReplicaSet
from support.groups import until
from support.tiny_models import make_model

PROMPTS = [[i + 1, 7, i * 3 % 50 + 1, 9] for i in range(8)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
LONG = SamplingParams(max_tokens=48, ignore_eos=True)


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


def test_what_a_killed_process_had_goes_on_in_the_other(sets: list[str], expected: list[tuple[int, ...]]) -> None:  # R1
    """It ends before another process has taken the killed one's place: the start of that one waits for it."""
    two = [*sets, "executor.use=mp", "parallel.data_parallel_size=2"]
    started: list[int] = []
    with LLM(sets=two) as llm:
        port = llm._front.client
        assert isinstance(port, ReplicaSet)
        core = port._cores[0]
        respawn, over = core.parts.respawn, threading.Event()
        assert respawn is not None

        def late(pause: Callable[[], None], *lender: Any) -> None:
            assert over.wait(60), "the answers do not come without the killed process"
            started.append(core.num_unfinished)
            respawn(pause, *lender)

        vars(core.parts)["respawn"] = late  # a frozen class: a test alone may
        streams = [llm.stream(prompt, LONG) for prompt in PROMPTS]
        begun = [next(iter(stream)) for stream in streams]
        os.kill(next(one for one in llm.health().workers if one.slot.group == 0).incarnation.pid, signal.SIGKILL)
        rest = [[token for delta in stream for token in delta.token_ids] for stream in streams]
        got = [(*first.token_ids, *others) for first, others in zip(begun, rest, strict=True)]
        over.set()
        assert got == [answer.token_ids for answer in llm.generate(PROMPTS, LONG)]
        assert [answer[:8] for answer in got] == expected
        until(lambda: bool(started) and llm.health().healthy)
    assert started == [0]

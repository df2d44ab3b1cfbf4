"""Two ranks that share one real model, each a process: one of them is killed, one of them fails in the start."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.interfaces import Kind
from enginebay.testing._offer import offer
from support import rank_witness
from support.census import Census
from support.fake_engines import ENGINEBAY
from support.repository import ROOT
from support.tiny_models import make_model

BANNED = """
import pickle

import jinja2  # its import pickles a constant, the header of files of a cache that nobody uses

def banned(*arguments, **options):
    raise AssertionError("something is pickled")

pickle.dump = pickle.dumps = pickle.load = pickle.loads = banned
"""
PROMPTS = [[index + 1, 7, index * 3 % 50 + 1, 9] for index in range(4)]
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A tiny model on two ranks, each with the witness in it; none of their processes can pickle."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(rank_witness.__file__, site / "rank_witness.py")
    (site / "sitecustomize.py").write_text(BANNED)
    offer(site, monkeypatch, Kind.WORKER_EXTENSION, "witness", "rank_witness")
    return {
        "model": {"path": str(make_model(tmp_path / "model", "llama"))},
        "executor": {"use": "mp"},
        "parallel": {"tensor_parallel_size": 2},
        "cache": {"num_blocks": 64},
        "worker": {"extensions": ["witness"]},
    }


def witnesses(llm: LLM) -> list[dict[str, Any]]:
    return [json.loads(told) for told in llm.collective_rpc("witness.tell")]


def test_a_killed_rank_costs_no_request_and_nothing_is_pickled(
    config: dict[str, Any], census: Census, monkeypatch: pytest.MonkeyPatch
) -> None:  # P6, X4, X12, R6
    def banned(*arguments: object, **options: object) -> None:
        raise AssertionError("something is pickled")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, banned)
    with LLM(config) as llm:
        first = witnesses(llm)
        assert [(one["rank"], one["pickling"]) for one in first] == [
            (0, "AssertionError: something is pickled"),
            (1, "AssertionError: something is pickled"),
        ]
        expected = [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)]
        before = llm.stats().committed_tokens
        answers: list[Any] = []
        client = threading.Thread(target=lambda: answers.extend(llm.generate(PROMPTS, PARAMS)))
        client.start()
        for _ in range(6000):
            if llm.stats().committed_tokens > before + 8:
                break
            threading.Event().wait(0.005)
        os.kill(first[1]["pid"], signal.SIGKILL)
        client.join(120)
        assert [answer.token_ids for answer in answers] == expected
        assert all(answer.usage.recomputed_tokens > 0 for answer in answers)  # they were in the middle
        again = witnesses(llm)
        assert [one["rank"] for one in again] == [0, 1]
        assert not {one["pid"] for one in first} & {one["pid"] for one in again}  # the whole group is new
    census.check()


def test_the_user_sees_once_what_failed_on_one_rank_of_two(
    config: dict[str, Any], census: Census, tmp_path: Path
) -> None:  # X14
    """As docs/workers.md shows it, but for what differs from one run to the next."""
    config["worker"]["options"] = {"witness": {"fails_on": 1}}
    lines = [f"[{section}]\n" + "".join(_toml(values)) for section, values in config.items()]
    (tmp_path / "engine.toml").write_text("\n".join(lines))
    done = subprocess.run(
        [*ENGINEBAY, "generate", "w1 w2", "--config", str(tmp_path / "engine.toml")],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    page = (ROOT / "docs" / "workers.md").read_text()
    shown = page.partition("$ enginebay generate --config engine.toml Hello\n")[2].partition("```")[0]
    assert shown
    assert _alike(done.stderr) == _alike(shown)
    census.check()


def _toml(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}\n" for key, value in values.items()]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def _alike(text: str) -> list[str]:
    """Without the frames of the traceback, and without the names of process, host and package."""
    kept = [line for line in text.splitlines() if not line.startswith("  ")]
    named = [re.sub(r"pid \d+, host [^)]+", "pid N, host H", line) for line in kept]
    return [re.sub(r" of \S+ [\d.]+ is broken", " of PACKAGE is broken", line) for line in named]

"""A real model over two worker processes: one rank whose weights are torn, and one that is killed in its step."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from enginebay import LLM, SamplingParams
from enginebay.interfaces import Kind
from enginebay.testing._offer import offer
from support import saboteur
from support.census import Census
from support.fake_engines import ENGINEBAY
from support.tiny_models import make_model

pytestmark = pytest.mark.soak  # test_tensor_ranks.py is the short form

TWO_RANKS = {"executor.use": "mp", "parallel.tensor_parallel_size": 2, "model.dtype": "float32"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_model(tmp_path_factory.mktemp("models") / "llama", "llama")


def test_weights_that_are_torn_for_one_rank_alone(
    llama: Path, tmp_path: Path, census: Census, monkeypatch: pytest.MonkeyPatch
) -> None:  # X14, E2: what a user sees of it
    torn = shutil.copytree(llama, tmp_path / "torn")
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (tmp_path / "offered").mkdir()
    shutil.copy(saboteur.__file__, tmp_path / "offered" / "saboteur.py")
    offer(tmp_path / "offered", monkeypatch, Kind.WORKER_EXTENSION, "saboteur", "saboteur")
    sets = TWO_RANKS | {
        "model.path": llama,
        "worker.extensions": '["saboteur"]',
        "worker.options.saboteur.path": torn,
    }
    done = subprocess.run(
        [*ENGINEBAY, "generate", "w1", *(part for key, value in sets.items() for part in ("--set", f"{key}={value}"))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    *traceback, note, last = done.stderr.splitlines()
    said = rf"rank 1 \(pid \d+, host .+\) failed in load_model: ModelError: {re.escape(str(weights))} is truncated: .+"
    assert re.fullmatch(f"enginebay: {said}", last), done.stderr
    assert re.fullmatch(
        r"rank 0 \(pid \d+, host .+\) failed in load_model: WorkerFailed: another rank of the world failed to load its "
        r"part of the model: see its error",
        note,
    ), done.stderr
    assert sum(line.startswith("Traceback (most recent call last)") for line in traceback) >= 1
    assert sum("enginebay.errors.ModelError: " in line for line in traceback) == 1
    census.check()


def test_a_rank_that_is_killed_changes_no_token(llama: Path, census: Census) -> None:  # X4
    config = {
        "model": {"path": str(llama), "dtype": "float32"},
        "executor": {"use": "mp"},
        "parallel": {"tensor_parallel_size": 2},
        "worker": {"threads": 1},
    }
    prompts, params = ["w1 w2 w3", "w4", "w5 w6"], SamplingParams(max_tokens=60, ignore_eos=True)
    with LLM(config=config) as llm:
        undisturbed = [output.token_ids for output in llm.generate(prompts, params)]
        before = llm.stats().committed_tokens
        answers: list[object] = []
        client = threading.Thread(
            target=lambda: answers.extend(output.token_ids for output in llm.generate(prompts, params))
        )
        client.start()
        while llm.stats().committed_tokens < before + 10:
            threading.Event().wait(0.005)
        children = [one for one in psutil.Process().children() if "enginebay.worker.process" in one.cmdline()]
        os.kill(max(child.pid for child in children), signal.SIGKILL)
        client.join(300)
        assert answers == undisturbed
        assert llm.status()["generation"] == "1"
    census.check()

"""The example executor, as a stranger's: built, installed beside enginebay, named in a config file, and run on Dask."""

from __future__ import annotations

import json

import pytest

from enginebay import LLM, SamplingParams
from support.kit import HEART
from support.outside import EXAMPLES, Outside
from support.repository import ROOT
from support.tiny_models import make_model

CONFIG = """
[model]
path = "model"
dtype = "float32"

[parallel]
tensor_parallel_size = 2

[executor]
use = "dask"

[executor.options]
listen = "127.0.0.1"

[cache]
num_blocks = 64
"""
PROMPTS = [f"w{i} w{i + 1} w7" for i in range(8)]
KIT = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "enginebay.testing.plugin")
KIT_ON_DASK = (*KIT, "--pyargs", "enginebay.testing.suite", "--executor", "dask")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    folder = tmp_path_factory.mktemp("outside")
    made = Outside(folder, [ROOT, EXAMPLES / "third_party_executor"])
    make_model(folder / "model", "llama")
    (folder / "dask.toml").write_text(CONFIG)
    (folder / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    return made


def test_check_names_its_package(outside: Outside) -> None:
    printed = outside.enginebay("check", "--config", "dask.toml")
    assert "enginebay-dask 0.1.0; dask.toml" in printed
    assert "enginebay_dask/plugin.py" in printed


def test_two_ranks_on_dask_answer_as_one_worker_does(outside: Outside) -> None:
    asked = ("--file", "prompts.txt", "--json", "--max-tokens", "8", "--ignore-eos")
    printed = outside.enginebay("generate", "--config", "dask.toml", *asked)
    sets = [f"model.path={outside.folder / 'model'}", "model.dtype=float32", "cache.num_blocks=64"]
    with LLM(sets=sets) as llm:
        expected = llm.generate(PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))
    told = [json.loads(line)["token_ids"] for line in printed.splitlines()]
    assert told == [list(answer.token_ids) for answer in expected]


def test_the_heart_of_the_conformance_kit_passes(outside: Outside) -> None:
    printed = outside.python(*KIT_ON_DASK, "-k", HEART, timeout=250)
    assert " passed" in printed
    assert not {"failed", "error", "skipped"} & set(printed.split())


@pytest.mark.soak
@pytest.mark.timeout(1900)
def test_the_whole_conformance_kit_passes(outside: Outside) -> None:
    printed = outside.python(*KIT_ON_DASK, timeout=1800)
    assert " passed" in printed
    assert not {"failed", "error", "skipped"} & set(printed.split())


def test_it_is_short_and_has_a_readme() -> None:
    files = (EXAMPLES / "third_party_executor" / "src").rglob("*.py")
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) <= 240
    assert (EXAMPLES / "third_party_executor" / "README.md").stat().st_size > 500

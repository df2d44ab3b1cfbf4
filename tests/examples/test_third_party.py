"""Both example packages, as strangers: built, installed into a fresh environment, named in a config file, and run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from support.outside import EXAMPLES, Outside
from support.repository import ROOT

MODEL = """
import json, sys
from pathlib import Path
folder = Path("model"); folder.mkdir()
config = {"architectures": ["Any"], "model_type": "any", "vocab_size": 1000, "max_position_embeddings": 4096,
          "torch_dtype": "float32"}
(folder / "config.json").write_text(json.dumps(config))
vocab = {f"w{i}": i for i in range(1000)}
tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"},
             "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}}
(folder / "tokenizer.json").write_text(json.dumps(tokenizer))
import numpy
from safetensors.numpy import save_file
save_file({"nothing": numpy.zeros(1, dtype=numpy.float32)}, folder / "model.safetensors")
"""

CONFIG = """
[model]
path = "model"

[runner]
use = "abacus"

[scheduler]
use = "shortest"
max_num_seqs = 4

[scheduler.options]
ageing = 5.0

[cache]
num_blocks = 64
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    folder = tmp_path_factory.mktemp("outside")
    made = Outside(folder, [ROOT, EXAMPLES / "third_party_scheduler", EXAMPLES / "third_party_runner"])
    made.python("-c", MODEL)
    (folder / "engine.toml").write_text(CONFIG)
    return made


def test_they_are_found_beside_the_built_in_ones(outside: Outside) -> None:
    listed = {(row["kind"], row["name"], row["package"]) for row in json.loads(outside.enginebay("plugins", "--json"))}
    assert {
        ("scheduler", "shortest", "enginebay-shortest"),
        ("runner", "abacus", "enginebay-abacus"),
        ("scheduler", "fcfs", "enginebay"),
    } <= listed


def test_enginebay_itself_comes_from_its_wheel(outside: Outside) -> None:
    where = outside.python("-c", "import enginebay, enginebay_uni; print(enginebay.__file__, enginebay_uni.__file__)")
    assert all(path.startswith(str(outside.folder)) for path in where.split())


def test_check_names_their_packages(outside: Outside) -> None:
    printed = outside.enginebay("check", "--config", "engine.toml")
    assert "enginebay-shortest 0.1.0; engine.toml" in printed
    assert "enginebay-abacus 0.1.0; engine.toml" in printed


def test_a_config_file_drives_them(outside: Outside) -> None:
    (outside.folder / "prompts.txt").write_text("".join(f"w{i} w{i + 1} w7\n" for i in range(20)))
    printed = outside.enginebay(
        *("generate", "--config", "engine.toml", "--file", "prompts.txt", "--json", "--max-tokens", "6", "--ignore-eos")
    )
    answers = [json.loads(line) for line in printed.splitlines()]
    expected = outside.python(
        "-c",
        "from enginebay_abacus.runner import answer\nfor i in range(20): print(*answer([i, i + 1, 7], 6, 1000))",
    )
    assert [a["token_ids"] for a in answers] == [[int(t) for t in line.split()] for line in expected.splitlines()]


@pytest.mark.parametrize("which", [("--scheduler", "shortest"), ("--runner", "abacus")])
def test_the_conformance_kit_passes(outside: Outside, which: tuple[str, str]) -> None:
    printed = outside.python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "enginebay.testing.plugin"),
        *("--pyargs", "enginebay.testing.suite", *which, "--model", "model"),
        timeout=250,
    )
    assert " passed" in printed
    assert "failed" not in printed
    assert "skipped" not in printed


def test_the_policy_is_short() -> None:
    source = (EXAMPLES / "third_party_scheduler/src/enginebay_shortest/policy.py").read_text()
    assert ast.parse(source).body
    assert len([line for line in source.splitlines() if line.strip()]) <= 60


def test_the_examples_have_a_readme_and_a_test() -> None:
    for package in ("third_party_scheduler", "third_party_runner"):
        folder: Path = EXAMPLES / package
        assert (folder / "README.md").stat().st_size > 500
        assert list((folder / "tests").glob("test_*.py"))

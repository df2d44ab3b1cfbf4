"""The example packages, as strangers: built, installed into a fresh environment, named in a config file, and run."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from support.outside import EXAMPLES, Outside
from support.repository import ROOT

SCHEDULERS = ("sjf", "slo", "prefix")
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

NET = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.relu(x)) + 1
"""

CONFIG = """
[model]
path = "model"

[runner]
use = "abacus"

[scheduler]
use = "sjf"
max_num_seqs = 4

[scheduler.options]
ageing = 5.0

[cache]
num_blocks = 64
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    folder = tmp_path_factory.mktemp("outside")
    made = Outside(
        folder,
        [
            ROOT,
            *(EXAMPLES / f"third_party_{one}_scheduler" for one in SCHEDULERS),
            EXAMPLES / "third_party_runner",
            EXAMPLES / "third_party_graph_pass",
            EXAMPLES / "third_party_status_sink",
        ],
    )
    made.python("-c", MODEL)
    (folder / "engine.toml").write_text(CONFIG)
    return made


def test_they_are_found_beside_the_built_in_ones(outside: Outside) -> None:
    listed = {(row["kind"], row["name"], row["package"]) for row in json.loads(outside.enginebay("plugins", "--json"))}
    assert {
        *(("scheduler", one, f"enginebay-{one}") for one in SCHEDULERS),
        ("runner", "abacus", "enginebay-abacus"),
        ("worker extension", "fold_repeats", "enginebay-fold-repeats"),
        ("status sink", "pod_conditions", "enginebay-pod-conditions"),
        *(("scheduler", one, "enginebay") for one in ("fair", "fcfs", "priority")),
        *(("status sink", one, "enginebay") for one in ("http", "memory", "sqlite")),
    } <= listed


def test_enginebay_itself_comes_from_its_wheel(outside: Outside) -> None:
    where = outside.python("-c", "import enginebay, enginebay_uni; print(enginebay.__file__, enginebay_uni.__file__)")
    assert all(path.startswith(str(outside.folder)) for path in where.split())


def test_check_names_their_packages(outside: Outside) -> None:
    sink = ("--set", 'status.sinks=["pod_conditions"]', "--set", "status.pod_conditions.pod=engine-0")
    printed = outside.enginebay("check", "--config", "engine.toml", *sink)
    assert re.search(r"status sink pod_conditions +pod = engine-0, .* enginebay-pod-conditions 0\.1\.0; --set", printed)
    assert "enginebay-sjf 0.1.0; engine.toml" in printed
    assert re.search(r"scheduler ageing +5\.0 +engine\.toml", printed)
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


def test_the_other_schedulers_run_too(outside: Outside) -> None:
    """In one process, which imports the rest once: all come to the same answers, in whatever order."""
    printed = outside.python(
        "-c",
        "from enginebay.cli import group\n"
        f"for scheduler in {SCHEDULERS[1:]}:\n"
        "    sets = ['model.path=model', 'runner.use=abacus', f'scheduler.use={scheduler}', 'cache.num_blocks=64']\n"
        "    flags = [word for one in sets for word in ('--set', one)]\n"
        "    group.main(['generate', 'w1 w2 w7', *flags, '--json', '--max-tokens', '6'], standalone_mode=False)\n"
        "from enginebay_abacus.runner import answer\nprint(answer([1, 2, 7], 6, 1000))",
    )
    *answers, expected = map(json.loads, printed.splitlines())
    assert [answer["token_ids"] for answer in answers] == [expected] * 2


def test_the_conformance_kit_passes(outside: Outside) -> None:
    chosen = [*(f"--scheduler={one}" for one in SCHEDULERS), "--runner=abacus", "--model=model"]
    printed = outside.python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "enginebay.testing.plugin"),
        *("--pyargs", "enginebay.testing.suite", *chosen),
        timeout=250,
    )
    assert " passed" in printed
    assert "failed" not in printed
    assert "skipped" not in printed


def test_their_own_tests_pass(outside: Outside) -> None:
    """Without the suite, which runs by name above."""
    tests = [EXAMPLES / f"third_party_{one}_scheduler" / "tests" / f"test_{one}.py" for one in SCHEDULERS]
    tests.append(EXAMPLES / "third_party_graph_pass" / "tests" / "test_fold_repeats.py")
    printed = outside.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not Conformance", *tests)
    assert re.search(r"^15 passed, \d+ deselected", printed, re.MULTILINE)


def test_the_status_sinks_own_tests_pass(outside: Outside) -> None:
    """With the suite, for which they start a server."""
    folder = EXAMPLES / "third_party_status_sink"
    printed = outside.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder)
    assert re.search(r"^\d+ passed in", printed, re.MULTILINE)


def test_their_graph_pass_rewrites_a_module(outside: Outside) -> None:
    (outside.folder / "nets.py").write_text(NET)
    named = ("graph", "nets:Net", "--path", ".", "--set", 'worker.extensions=["fold_repeats"]', "--json")
    [told] = [one for one in json.loads(outside.enginebay(*named))["passes"] if one["name"] == "fold_repeats"]
    assert (told["package"], told["nodes_before"] - told["nodes_after"]) == ("enginebay-fold-repeats 0.1.0", 1)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_policies_are_short(scheduler: str) -> None:
    source = (EXAMPLES / f"third_party_{scheduler}_scheduler/src/enginebay_{scheduler}/policy.py").read_text()
    assert ast.parse(source).body
    assert len(source.splitlines()) <= 80


def test_the_examples_have_a_readme_and_a_test() -> None:
    for package in ("runner", "graph_pass", "status_sink", *(f"{one}_scheduler" for one in SCHEDULERS)):
        folder: Path = EXAMPLES / f"third_party_{package}"
        assert (folder / "README.md").stat().st_size > 500
        assert list((folder / "tests").glob("test_*.py"))

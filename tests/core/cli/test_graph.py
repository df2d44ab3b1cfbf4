"""``enginebay graph``: of a model, of any module, one pass alone, a picture, as JSON, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from enginebay.cli import group, main
from enginebay.messages import ModelInfo
from support.fake_dist import FakeSite

MODEL = ModelInfo(
    path="/models/tiny",
    name="tiny",
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=100,
    max_model_len=8192,
    dtype="bfloat16",
)
RUNNER = """
from support import graphs

SEEN = []

def capture(context):
    SEEN.append(context)
    graph_module, made = graphs.step_graph()
    context.constants.update(made.constants)
    return CapturedGraph(
        graph_module=graph_module, modules=("support.graphs",), inputs=graphs.step_inputs, constant=graphs.constant
    )

@hookimpl
def enginebay_graph_passes():
    return [
        GraphPass(name="fold", summary="drop products with 1", apply=graphs.fold_ones),
        GraphPass(name="pack", summary="two products in one", apply=graphs.packed),
    ]

@hookimpl
def enginebay_register_runners():
    return [RunnerPlugin(name="drawn", factory=make, capabilities=RunnerCapabilities(captures_graph=True),
                         capture=capture)]
"""
WRONG = """
from support import graphs

@hookimpl
def enginebay_graph_passes():
    return [GraphPass(name="twice", summary="wrong", apply=graphs.doubled, before=("fold",))]

@hookimpl
def enginebay_register_worker_extensions():
    return [WorkerExtensionPlugin(name="wrong", factory=make)]
"""
NET = """
import torch
print("imported")

class Net(torch.nn.Module):
    def forward(self, x):
        return x.clamp(min=0)
"""
DRAWN = ("--set", "runner.use=drawn")


@pytest.fixture
def model(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    """A model, and a runner that captures it."""
    site.plugin("runners", "drawn", RUNNER)
    monkeypatch.setattr("enginebay.models.resolve_model", lambda path, progress: path)
    monkeypatch.setattr("enginebay.models.read_model_info", lambda folder, name, needs_tokenizer: MODEL)
    return site


@pytest.fixture
def nets(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module."""
    folder = tmp_path / "nets"
    folder.mkdir()
    (folder / "shown_net.py").write_text(NET)
    yield folder
    sys.modules.pop("shown_net", None)


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(group, ["graph", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["graph", *map(str, arguments)])
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (2, "")
    return captured.err.removeprefix("enginebay: ").removesuffix("\n")


def test_a_model_is_shown_in_sections(model: FakeSite) -> None:
    text = shown(*DRAWN)
    assert text.startswith("# tiny, captured by runner 'drawn' of drawn-pkg 1.0, bfloat16\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "intermediate representation",
        "intermediate representation after the passes",
        "nodes",
        "nodes after the passes",
        "pass fold",
        "pass pack",
        "code",
    ]
    assert re.search(r"^  call_function  mul_tensor +aten\.mul\.Tensor +linear_default, 1\.0$", text, re.MULTILINE)
    assert "drop products with 1 (drawn-pkg 1.0)\n10 nodes before, 9 after\n\nbefore:\n\nimport torch\n" in text
    [context] = sys.modules["drawn_pkg_plugin"].SEEN
    assert (context.dtype, context.block_size, context.max_model_len, context.model) == ("bfloat16", 16, 8192, MODEL)


def test_the_code_alone_is_a_python_file(model: FakeSite) -> None:
    code = shown(*DRAWN, "--show", "code")
    assert code.startswith("import support.graphs\nimport torch\n\n\ndef forward(x, key_cache_0, a_b_weight):\n")
    compile(code, "step.py", "exec")


def test_one_pass_is_shown_with_the_code_before_and_after(model: FakeSite) -> None:
    text = shown(*DRAWN, "--pass", "pack")
    assert re.findall(r"^(?:## .*|before:|after:)$", text, re.MULTILINE) == ["## pass pack", "before:", "after:"]
    before, after = text.partition("after:\n")[::2]
    assert ("a_b_weight" in before, "a_b_weight" in after) == (False, True)
    difference = shown(*DRAWN, "--pass", "fold", "--diff")
    changed = [line for line in difference.splitlines() if line.startswith(("-   ", "+   "))]
    assert any("aten.mul.Tensor" in line for line in changed if line[0] == "-")
    assert not any("aten.mul.Tensor" in line for line in changed if line[0] == "+")


def test_json_has_everything(model: FakeSite) -> None:
    told = json.loads(shown(*DRAWN, "--json"))
    assert list(told) == ["source", "made_by", "ir", "nodes", "passes", "verified", "after", "code"]
    assert told["nodes"][0] == {"opcode": "placeholder", "name": "x", "target": "x", "args": ""}
    assert [(one["name"], one["changed"], one["nodes_before"]) for one in told["passes"]] == [
        ("fold", True, 10),
        ("pack", True, 9),
    ]
    assert told["passes"][1]["code_before"] == told["passes"][0]["code_after"]
    assert len(told["after"]["nodes"]) == told["passes"][1]["nodes_after"]


def test_verified_passes_say_so_and_run_in_float32(model: FakeSite) -> None:
    text = shown(*DRAWN, "--verify-graph", "--show", "passes")
    assert text.startswith("# tiny, captured by runner 'drawn' of drawn-pkg 1.0, float32\n")
    assert text.count(", same results\n") == 2


def test_a_wrong_pass_is_caught_by_name(model: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    model.plugin("worker_extensions", "wrong", WRONG)
    with_it = (*DRAWN, "--set", 'worker.extensions=["wrong"]')
    assert "## pass twice" in shown(*with_it), "nobody has asked"
    assert refused(capsys, *with_it, "--verify-graph").startswith(
        "graph pass 'twice' of wrong-pkg 1.0 changes results: output 0 differs by up to 17.4, in 8 of 8 numbers"
    )


def test_a_picture_is_written(model: FakeSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layer.svg"
    assert shown(*DRAWN, "--svg", file, "--layer", "0", "--show", "nodes").startswith("# tiny")
    assert "tiny: layer 0 of 0 to 0" in file.read_text()
    assert refused(capsys, *DRAWN, "--svg", tmp_path / "no" / "x.svg") == (
        f"cannot write {tmp_path / 'no' / 'x.svg'}: No such file or directory"
    )
    assert refused(capsys, *DRAWN, "--svg", file, "--layer", "4") == "there is no layer 4: they are 0 to 0"


def test_a_runner_that_captures_nothing_is_refused_with_one_that_does(
    model: FakeSite, capsys: pytest.CaptureFixture[str]
) -> None:
    model.runner("eager")
    said = refused(capsys, "--set", "runner.use=eager")
    head = "runner 'eager' (eager-pkg 1.0) captures no graph. One that does: --set runner.use="
    assert said.startswith(head)
    assert said.removeprefix(head) in {"drawn", "v2"}


def test_passes_without_a_graph_are_refused_at_assembly(model: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    model.runner("eager")
    model.plugin("worker_extensions", "wrong", WRONG.replace(', before=("fold",)', ""))
    assert refused(capsys, "--set", "runner.use=eager", "--set", 'worker.extensions=["wrong"]') == (
        "graph pass 'twice' of wrong-pkg 1.0 has nothing to rewrite: runner 'eager' captures no graph. Choose a runner "
        "that does, or take the pass's extension out of [worker] extensions"
    )


def test_check_says_which_passes_run(model: FakeSite) -> None:
    result = CliRunner().invoke(group, ["check", *DRAWN])
    assert re.search(r"^  graph passes +fold, pack +in this order; enginebay graph shows", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pass", "pak"], "no graph pass 'pak' has run. Did you mean 'pack'? Those that have: fold, pack"),
        (["--path", "."], "--path is for package.module:Class, and none is named"),
        (
            ["a:Net", "--verify-graph"],
            "--verify-graph runs the step of a model, whose inputs are known; those of a:Net are not: leave one out",
        ),
        (
            ["--verify-graph", "--set", "parallel.tensor_parallel_size=2"],
            "--verify-graph runs one rank alone: add --set parallel.tensor_parallel_size=1, or leave it out",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    model: FakeSite, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    if "tensor_parallel" in said:
        body = RUNNER.replace("captures_graph=True", "captures_graph=True, tensor_parallel=True")
        model.plugin("runners", "wide", body.replace('"drawn"', '"wide"'))
        arguments = [*arguments, "--set", "runner.use=wide", "--set", "executor.use=mp"]
    else:
        arguments = [*DRAWN, *arguments]
    assert refused(capsys, *arguments) == said


def test_a_runner_that_fails_to_capture_is_named(model: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    body = RUNNER.replace('"drawn"', '"bad"').replace("SEEN.append(context)", "raise ValueError('no export')")
    model.plugin("runners", "bad", body)
    assert refused(capsys, "--set", "runner.use=bad") == (
        "runner 'bad' (bad-pkg 1.0) cannot capture tiny: ValueError: no export"
    )


def test_a_module_is_shown_without_passes_that_are_for_models(model: FakeSite, nets: Path) -> None:
    text = shown("shown_net:Net", "--path", nets, *DRAWN)
    assert text.startswith("# shown_net:Net, traced by torch.fx.symbolic_trace\n")
    assert "## passes\n\nnone has run\n" in text
    told: dict[str, Any] = json.loads(shown("shown_net:Net", "--path", nets, "--json", *DRAWN))
    assert [row["opcode"] for row in told["nodes"]] == ["placeholder", "call_method", "output"]
    space: dict[str, Any] = {}
    exec(told["code"], space)
    assert space["forward"](torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_a_pass_for_any_module_runs_on_one(model: FakeSite, nets: Path) -> None:
    body = WRONG.replace('apply=graphs.doubled, before=("fold",)', "apply=lambda g, c: None, any_module=True")
    model.plugin("worker_extensions", "wrong", body)
    arguments = ("shown_net:Net", "--path", nets, *DRAWN, "--set", 'worker.extensions=["wrong"]', "--show", "passes")
    assert "## pass twice\n\nwrong (wrong-pkg 1.0)\nchanged nothing\n" in shown(*arguments)


def test_a_broken_runner_that_nobody_asked_for_is_passed_over(model: FakeSite, nets: Path) -> None:
    model.plugin("runners", "broken", "raise RuntimeError('imported')")
    assert "shown_net:Net" in shown("shown_net:Net", "--path", nets)


def test_errors_of_a_module_have_exit_code_2(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "shown_net:Nets", "--path", nets) == (
        "imported\nenginebay: module shown_net has no class Nets. Did you mean 'Net'? It has: Net"
    ), "what the module prints is no result either"

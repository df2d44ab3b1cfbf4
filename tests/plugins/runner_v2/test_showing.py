"""What ``enginebay graph`` shows of runner v2, and that ``verify_graph`` holds its passes to what they promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from enginebay.cli import group
from enginebay.errors import PluginBroken
from enginebay.interfaces import GraphContext, GraphPass
from enginebay.testing import start_runner
from enginebay_runner_v2.passes import built_in_passes

Tiny = Callable[[str], Path]


def shown(folder: Path, *arguments: str) -> str:
    sets = ("--set", f"model.path={folder}", "--set", "runner.use=v2")
    result = CliRunner().invoke(group, ["graph", *sets, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma3", marks=pytest.mark.soak)])
def test_every_built_in_pass_keeps_results_and_the_picture_shows_it(family: str, tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "layer.svg"
    told = json.loads(shown(tiny(family), "--verify-graph", "--json", "--svg", str(file)))
    assert told["verified"] is True
    assert [one["name"] for one in told["passes"]] == [one.name for one in built_in_passes()]
    assert told["code"].startswith("import enginebay_runner_v2.ops\nimport torch\n")
    space: dict[str, Any] = {}
    exec(told["code"], space)
    assert callable(space["forward"])
    picture = file.read_text()
    assert "rotary_attention" in picture
    assert "self_attn.q_proj + k_proj + v_proj" in picture


def test_of_several_ranks_the_passes_of_one_are_shown(tiny: Tiny) -> None:
    two = ("--set", "executor.use=mp", "--set", "parallel.tensor_parallel_size=2")
    assert shown(tiny("llama"), *two, "--show", "code") == shown(tiny("llama"), "--show", "code")


def _wrong(graph_module: Any, context: GraphContext) -> None:
    """Everything is as likely as it was unlikely."""
    output = graph_module.graph.output_node()
    logits, *others = output.args[0]
    with graph_module.graph.inserting_before(output):
        output.args = ((graph_module.graph.call_function(torch.ops.aten.neg.default, (logits,)), *others),)


def test_a_wrong_pass_stops_the_start_by_its_name(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = GraphPass(name="turn_around", summary="wrong", apply=_wrong, before=("drop",))
    monkeypatch.setattr("enginebay_runner_v2.plugin.built_in_passes", lambda: [*built_in_passes(), wrong])
    said = r"^graph pass 'turn_around' of enginebay \S+ changes results: output 0 differs by up to "
    with (
        pytest.raises(PluginBroken, match=said),
        start_runner("v2", tiny("llama"), options={"compile": "off", "verify_graph": True}),
    ):
        pass

"""What is folded, what is left, and that results are the same; a pass that is wrong is caught by its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from enginebay_fold_repeats.plugin import enginebay_graph_passes

from enginebay.errors import PluginBroken
from enginebay.graph import run_passes, run_verified
from enginebay.interfaces import GraphContext, GraphPass

X = torch.tensor([-1.5, 0.0, 2.5, float("nan")])


class Net(torch.nn.Module):
    """Two calls are for nothing: a method after the same method, twice; the others are not the same call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape."""
        positive = torch.relu(torch.relu(x).relu().relu()) + x.abs().abs()
        return torch.relu(positive.round(decimals=1).round()) * 2 * 2


def _checked(*passes: GraphPass) -> torch.fx.GraphModule:
    graph_module = torch.fx.symbolic_trace(Net())
    run_verified(graph_module, passes, GraphContext(), inputs={"x": X}, constant=_none)
    return graph_module


def _none(origin: Any) -> Any:
    raise AssertionError("this graph has no constants")


def test_what_is_done_twice_is_done_once() -> None:
    graph_module = torch.fx.symbolic_trace(Net())
    [report] = run_passes(graph_module, enginebay_graph_passes(), GraphContext())
    assert report.nodes_before - report.nodes_after == 2
    assert report.code_after.count("abs") < report.code_before.count("abs")


def test_results_are_the_same() -> None:
    torch.testing.assert_close(_checked(*enginebay_graph_passes())(X), Net()(X), rtol=0, atol=0, equal_nan=True)


def test_a_wrong_pass_is_caught_by_its_name() -> None:
    def doubles(graph_module: Any, context: GraphContext) -> None:
        for node in graph_module.graph.nodes:
            if node.args[1:] == (2,):
                node.args = (node.args[0], 3)

    wrong = GraphPass(name="doubles", summary="wrong", apply=doubles)
    with pytest.raises(PluginBroken, match=r"^graph pass 'doubles' changes results: output 0 differs by up to"):
        _checked(*enginebay_graph_passes(), wrong)

"""The parity check: it lets what is right pass, and names the first pass that changes results."""

from __future__ import annotations

import copy

import pytest
import torch

from enginebay.errors import GraphError, PluginBroken
from enginebay.graph import run_verified, verify
from enginebay.interfaces import GraphContext, GraphPass
from support.graphs import a_pass, aten, call_of, constant, doubled, fold_ones, packed, step_graph, step_inputs


def checked(*passes: GraphPass) -> GraphContext:
    graph_module, context = step_graph()
    run_verified(graph_module, passes, context, inputs=step_inputs(), constant=constant)
    return context


def refusal(*passes: GraphPass) -> str:
    with pytest.raises(PluginBroken) as caught:
        checked(*passes)
    return str(caught.value)


def test_what_is_right_passes_also_with_other_constants() -> None:
    assert list(checked(a_pass("fold", fold_ones), a_pass("pack", packed)).constants) == ["a_b_weight"]


def test_the_first_that_changes_results_is_named() -> None:
    said = refusal(a_pass("pack", packed), a_pass("twice", doubled, package="w 1.0"), a_pass("fold", fold_ones))
    assert said == (
        "graph pass 'twice' of w 1.0 changes results: output 0 differs by up to 17.4, in 8 of 8 numbers, the largest "
        "of which is 29.4. It declares a tolerance of 0. Leave it out, or have it repaired; "
        "enginebay graph --pass twice shows what it did."
    )


def test_a_declared_tolerance_is_in_parts_of_the_largest_number() -> None:
    def nearly(graph_module: torch.fx.GraphModule, context: GraphContext) -> None:
        node = call_of(graph_module, aten.mul.Tensor)
        node.args = (node.args[0], 1.001)

    checked(a_pass("near", nearly, tolerance=1e-3))
    assert "changes results: output 0 differs by up to 0.0174" in refusal(a_pass("near", nearly, tolerance=1e-4))


def test_what_is_written_into_a_cache_is_a_result() -> None:
    def counts_by_two(graph_module: torch.fx.GraphModule, context: GraphContext) -> None:
        node = call_of(graph_module, aten.add_.Tensor)
        node.args = (node.args[0], 2)

    assert "changes results: key_cache_0 differs by up to 1, in 5 of 5 numbers" in refusal(a_pass("x", counts_by_two))


def test_a_graph_that_does_not_run_before_any_pass_is_told() -> None:
    graph_module, context = step_graph()
    inputs = step_inputs() | {"x": torch.ones(2, 7)}
    with pytest.raises(GraphError, match=r"^the graph does not run as it was captured: RuntimeError: "):
        run_verified(graph_module, [], context, inputs=inputs, constant=constant)


def test_inputs_are_left_as_they_were() -> None:
    inputs = step_inputs()
    graph_module, context = step_graph()
    run_verified(graph_module, [a_pass("nothing")], context, inputs=inputs, constant=constant)
    assert torch.equal(inputs["key_cache_0"], torch.zeros(5))


def test_an_output_that_is_gone_or_of_another_shape_is_told() -> None:
    def flattened(graph_module: torch.fx.GraphModule, context: GraphContext) -> None:
        node = call_of(graph_module, aten.add.Tensor)
        with graph_module.graph.inserting_after(node):
            node.replace_all_uses_with(flat := graph_module.graph.call_function(aten.flatten.using_ints, (node,)))
        flat.args = (node,)

    def dropped(graph_module: torch.fx.GraphModule, context: GraphContext) -> None:
        graph_module.graph.output_node().args = ((),)

    assert "changes results: output 0 is float32 [8], and was float32 [2, 4]." in refusal(a_pass("x", flattened))
    assert "changes results: output 0 is gone." in refusal(a_pass("x", dropped))


def test_a_constant_without_origin_is_told() -> None:
    def unsaid(graph_module: torch.fx.GraphModule, context: GraphContext) -> None:
        packed(graph_module, context)
        del context.constants["a_b_weight"]

    assert refusal(a_pass("x", unsaid)) == (
        "graph pass 'x' left code that does not run: ValueError: nothing says where its placeholder 'a_b_weight' "
        "comes from: context.constants should"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_compared(value: float) -> None:
    graph_module, _ = step_graph()
    inputs = step_inputs() | {"a_weight": torch.full((4, 3), value), "b_weight": torch.ones(4, 3)}
    assert verify(graph_module, copy.deepcopy(graph_module), inputs) is None
    other = copy.deepcopy(graph_module)
    node = call_of(other, aten.add.Tensor)
    node.replace_all_uses_with(node.args[1])
    other.recompile()
    assert verify(graph_module, other, inputs) is not None

"""Passes: their order, what a report says, what is tidied up after each, and how a broken one is named."""

from __future__ import annotations

import pytest
import torch

from enginebay.errors import PluginBroken
from enginebay.graph import run_passes
from enginebay.interfaces import GraphContext, GraphPass, Packed
from enginebay.plugins import order_passes
from support.graphs import a_pass, aten, call_of, constant, fold_ones, packed, run, step_graph, step_inputs


def names(*passes: GraphPass) -> list[str]:
    return [one.name for one in order_passes(passes)]


def test_the_order_of_the_offer_is_kept() -> None:
    assert names(a_pass("c"), a_pass("a"), a_pass("b")) == ["c", "a", "b"]


def test_after_and_before_move_a_pass_and_leave_the_others() -> None:
    built_in = [a_pass("one"), a_pass("two"), a_pass("three", after=("two",))]
    assert names(*built_in, a_pass("mine", before=("two",))) == ["one", "mine", "two", "three"]
    assert names(*built_in, a_pass("mine", after=("one",))) == ["one", "two", "three", "mine"]
    assert names(a_pass("late", after=("soon",)), a_pass("soon"), a_pass("last")) == ["soon", "late", "last"]


def test_a_circle_is_told() -> None:
    with pytest.raises(PluginBroken) as caught:
        names(a_pass("ok"), a_pass("a", after=("c",)), a_pass("b", after=("a",)), a_pass("c", after=("b",)))
    assert str(caught.value) == "graph passes wait for each other in a circle: 'a' after 'c' after 'b' after 'a'."


@pytest.mark.parametrize("which", ["after", "before"])
def test_an_unknown_name_is_told(which: str) -> None:
    with pytest.raises(PluginBroken) as caught:
        names(a_pass("fuse_norm"), a_pass("mine", **{which: ("fuse_norms",)}, package="mine 1.0"))
    assert str(caught.value) == (
        f"graph pass 'mine' of mine 1.0 says it runs {which} 'fuse_norms', and no such pass is loaded. "
        "Did you mean 'fuse_norm'? Loaded: fuse_norm, mine"
    )


def test_two_of_one_name_are_told_with_their_packages() -> None:
    with pytest.raises(PluginBroken) as caught:
        names(a_pass("fold", package="one 1.0"), a_pass("fold", package="two 2.0"))
    assert str(caught.value) == "graph pass 'fold' is offered twice, by one 1.0 and two 2.0: load one of them."


def test_a_report_has_the_code_before_and_after() -> None:
    graph_module, context = step_graph()
    expected = run(graph_module, step_inputs() | {name: constant(o) for name, o in context.constants.items()})
    nothing, fold = run_passes(graph_module, [a_pass("nothing"), a_pass("fold", fold_ones, package="p 1")], context)
    assert (nothing.changed, nothing.nodes_before, nothing.nodes_after) == (False, 10, 10)
    assert (fold.changed, fold.nodes_before, fold.nodes_after, fold.package) == (True, 10, 9, "p 1")
    assert "aten.mul" in fold.code_before == nothing.code_after
    assert "aten.mul" not in fold.code_after
    assert "add_.Tensor" in fold.code_after, "what writes into an input is not dead"
    found = run(graph_module, step_inputs() | {name: constant(o) for name, o in context.constants.items()})
    assert torch.equal(found[0], expected[0])


def test_weights_that_nobody_reads_are_dropped_and_inputs_stay() -> None:
    graph_module, context = step_graph()
    run_passes(graph_module, [a_pass("pack", packed)], context)
    assert context.constants == {"a_b_weight": Packed(names=("a.weight", "b.weight"))}
    placeholders = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
    assert placeholders == ["x", "key_cache_0", "a_b_weight"]


def test_only_those_that_are_asked_for_run_and_keep_their_place() -> None:
    ran: list[str] = []

    def note(name: str) -> GraphPass:
        return a_pass(name, lambda graph, context: ran.append(name), after=("x",) if name == "y" else ())

    graph_module, context = step_graph()
    reports = run_passes(graph_module, [note("y"), note("x"), note("z")], context, only=["y", "x"])
    assert ran == ["x", "y"] == [report.name for report in reports]


def test_a_pass_that_raises_is_named_with_its_package() -> None:
    def apply(graph_module: object, context: GraphContext) -> None:
        raise KeyError("embed")

    graph_module, context = step_graph()
    with pytest.raises(PluginBroken, match=r"^graph pass 'bad' of bad-pkg 2\.0 raised KeyError: 'embed'$"):
        run_passes(graph_module, [a_pass("ok"), a_pass("bad", apply, package="bad-pkg 2.0")], context)


def test_a_pass_that_leaves_no_graph_is_named() -> None:
    def apply(graph_module: torch.fx.GraphModule, context: GraphContext) -> None:
        first, last = call_of(graph_module, aten.linear.default), call_of(graph_module, aten.add.Tensor)
        first.args = (last, first.args[1])  # reads what comes after it

    graph_module, context = step_graph()
    with pytest.raises(PluginBroken, match=r"^graph pass 'bad' left a graph that is none: RuntimeError: "):
        run_passes(graph_module, [a_pass("bad", apply)], context)

"""What each built-in pass makes of a step's graph: which calls go, and which come in their place."""

from __future__ import annotations

import operator
from collections import Counter
from pathlib import Path

import pytest
import torch

from enginebay.interfaces import Packed, Table
from enginebay_runner_v2.passes import gated_linear, sampled_rows
from support.graph_steps import SMALL, Step, capture_tiny, rewrite, tiny_step
from support.tiny_models import make_model

OURS = torch.ops.enginebay
ATEN = torch.ops.aten


def calls_of(step: Step) -> Counter[str]:
    """How often each operator is called, by its short name."""
    nodes = [node for node in step.captured.graph_module.graph.nodes if node.op == "call_function"]
    return Counter("getitem" if n.target is operator.getitem else str(n.target).removesuffix(".default") for n in nodes)


def test_drop_removes_checks_and_casts_of_no_effect() -> None:
    calls = calls_of(tiny_step("llama", "drop"))
    assert not [name for name in calls if "assert" in name or "alias" in name]
    assert calls["aten.to.dtype"] == 1  # positions become float once


def test_two_dimensions_turns_nothing_around() -> None:
    step = tiny_step("llama", "two_dimensions")
    calls = calls_of(step)
    assert not [name for name in calls if "transpose" in name or "permute" in name or "view" in name]
    assert calls["aten.reshape"] == 2 * 3  # queries, keys and values of each layer get a dimension for heads
    shapes = {node.meta["val"].dim() for node in step.captured.graph_module.graph.nodes if "val" in node.meta}
    assert shapes <= {1, 2, 3, 4}
    attention = next(n for n in step.captured.graph_module.graph.nodes if n.target is OURS.paged_attention.default)
    assert attention.args[2].target is ATEN.reshape.default


@pytest.mark.parametrize(("family", "chosen"), [("llama", 2), ("granite", 2), ("phi3", 2), ("gemma2", 2), ("olmo2", 2)])
def test_rows_are_chosen_behind_the_last_attention(family: str, chosen: int) -> None:
    step = tiny_step(family, "sampled_rows")
    order = list(step.captured.graph_module.graph.nodes)
    choices = [node for node in order if node.target is OURS.select_rows.default]
    assert len(choices) == chosen  # what attention gives, and what goes on beside it
    attentions = [node for node in order if node.target is OURS.paged_attention.default]
    assert any(node.args[0] is attentions[-1] for node in choices)
    assert all(order.index(node) > order.index(attentions[-1]) for node in choices)


def test_rows_are_chosen_where_more_of_them_are_wanted_otherwise() -> None:
    step = tiny_step("llama", "two_dimensions")
    graph = step.captured.graph_module.graph
    (output,) = graph.find_nodes(op="output")
    (chosen,) = output.args[0]
    hidden = chosen.args[0].args[0]
    output.args = ((chosen, hidden),)
    sampled_rows.apply(step.captured.graph_module, step.context)
    logits, same = output.args[0]
    assert same is hidden
    assert logits.args[0].target is OURS.select_rows.default
    assert logits.args[0].args[0] is hidden


def test_projections_of_one_input_are_one_product() -> None:
    step = tiny_step("qwen2", "pack_projections")
    packed = {name: origin for name, origin in step.context.constants.items() if isinstance(origin, Packed)}
    layer = "model.layers.0."
    assert packed["model_layers_0_self_attn_q_proj_k_proj_v_proj_weight"] == Packed(
        names=tuple(f"{layer}self_attn.{part}_proj.weight" for part in "qkv")
    )
    assert packed["model_layers_0_self_attn_q_proj_k_proj_v_proj_bias"] == Packed(
        names=tuple(f"{layer}self_attn.{part}_proj.bias" for part in "qkv")
    )
    assert packed["model_layers_0_mlp_gate_proj_up_proj_weight"].names[0].endswith("0.mlp.gate_proj.weight")
    assert len(packed) == 3
    assert calls_of(step)["aten.linear"] == 4 + 1
    assert not [name for name in step.context.constants if name.endswith("_q_proj_weight")]


def test_one_table_holds_cosines_and_sines() -> None:
    step = tiny_step("llama", "rotary_table")
    tables = [origin for origin in step.context.constants.values() if isinstance(origin, Table)]
    assert [table.kind for table in tables] == ["rotary"]
    assert tables[0].settings["positions"] == 128
    assert len(tables[0].settings["frequencies"]) == 4
    calls = calls_of(step)
    assert calls["enginebay.rotary_attention"] == 2
    assert not {"aten.cos", "aten.sin", "aten.neg", "enginebay.paged_attention"} & calls.keys()


@pytest.mark.soak
def test_layers_that_rotate_in_two_ways_have_two_tables(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    captured, context = capture_tiny(make_model(tmp_path / "m", "gemma3", num_hidden_layers=2, layer_types=kinds))
    rewrite(captured, context)
    tables = [origin for origin in context.constants.values() if isinstance(origin, Table) and origin.kind == "rotary"]
    assert len(tables) == 2
    assert tables[0].settings["frequencies"] != tables[1].settings["frequencies"]


def test_a_rotation_of_neighbours_stays_as_it_was(tmp_path: Path) -> None:
    captured, context = capture_tiny(make_model(tmp_path / "m", "glm4", num_hidden_layers=1))
    rewrite(captured, context)
    targets = {node.target for node in captured.graph_module.graph.nodes}
    assert OURS.paged_attention.default in targets
    assert OURS.rotary_attention.default not in targets


@pytest.mark.parametrize(
    ("family", "plain", "summed", "style"),
    [("llama", 1, 4, 0), ("gemma2", 5, 4, 1), ("qwen3", 3, 2, 0), ("olmo2", 4, 1, 0), ("granite", 1, 2, 0)],
)
def test_norms_are_one_call(family: str, plain: int, summed: int, style: int) -> None:
    step = tiny_step(family, "fuse_norm")
    calls = calls_of(step)
    assert (calls["enginebay.rms_norm"], calls["enginebay.add_rms_norm"]) == (plain, summed)
    assert "aten.rsqrt" not in calls
    targets = (OURS.rms_norm.default, OURS.add_rms_norm.default)
    norms = [node for node in step.captured.graph_module.graph.nodes if node.target in targets]
    assert {node.args[-1] for node in norms} == {style}


def test_a_norm_that_is_rounded_behind_its_weight_is_of_another_style_in_bfloat16() -> None:
    captured, context = capture_tiny(tiny_step("olmo2").folder, "bfloat16")
    rewrite(captured, context)
    nodes = captured.graph_module.graph.nodes
    assert {node.args[-1] for node in nodes if node.target is OURS.rms_norm.default} == {2}
    assert any(node.target is OURS.rotary_attention.default for node in nodes)


@pytest.mark.parametrize(("family", "activation"), [("llama", 0), ("phi3", 0), ("gemma2", 1)])
def test_gates_are_one_call(family: str, activation: int) -> None:
    step = tiny_step(family, "fuse_gate")
    gates = [node for node in step.captured.graph_module.graph.nodes if node.target is OURS.gated.default]
    assert [node.args[1] for node in gates] == [activation] * len(step.captured.shapes)


@pytest.mark.parametrize(("family", "activation"), [("llama", 0), ("phi3", 0), ("gemma2", 1)])
def test_a_product_of_gates_is_one_call_with_its_gate(family: str, activation: int) -> None:
    step = tiny_step(family, "gated_linear")
    layers = len(step.captured.shapes)
    gated = [node for node in step.captured.graph_module.graph.nodes if node.target is OURS.gated_linear.default]
    assert [node.args[4] for node in gated] == [activation] * layers
    assert all(node.args[1].name in step.context.constants for node in gated)
    assert calls_of(step)["enginebay.linear"] == 3 * layers + 1
    assert not calls_of(step)["enginebay.gated"]


def test_a_product_of_gates_that_others_use_stays() -> None:
    step = tiny_step("llama", "linear")
    graph = step.captured.graph_module.graph
    first, _ = (node for node in graph.nodes if node.target is OURS.gated.default)
    (output,) = graph.find_nodes(op="output")
    output.args = ((*output.args[0], first.args[0]),)
    gated_linear.apply(step.captured.graph_module, step.context)
    assert calls_of(step)["enginebay.gated"] == 1
    assert calls_of(step)["enginebay.gated_linear"] == 1


@pytest.mark.parametrize("family", SMALL)
def test_all_calls_are_of_aten_and_ours(family: str) -> None:
    calls = calls_of(tiny_step(family, "linear"))
    assert all(name == "getitem" or name.startswith(("aten.", "enginebay.")) for name in calls)
    assert "aten.linear" not in calls
    assert "aten.sym_size.int" not in calls


def test_a_llama_is_eight_calls_a_layer() -> None:
    calls = calls_of(tiny_step("llama", "linear"))
    del calls["getitem"]
    assert calls == {
        "aten.embedding": 1,
        "enginebay.rms_norm": 1,
        "enginebay.add_rms_norm": 2 * 2,
        "enginebay.linear": 2 * 4 + 1,
        "enginebay.rotary_attention": 2,
        "enginebay.gated": 2,
        "enginebay.select_rows": 2,
    }


def test_logits_alone_stay_in_float32() -> None:
    graph = tiny_step("llama", "linear").captured.graph_module.graph
    products = [node for node in graph.nodes if node.target is OURS.linear.default]
    assert [node.kwargs for node in products] == [{}] * 8 + [{"float_out": True}]

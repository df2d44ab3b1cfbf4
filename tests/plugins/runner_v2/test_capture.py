"""What capture gives: a graph whose inputs, constants and outputs are as its docstring says; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.interfaces import Parameter, Table
from enginebay.models import read_model_info
from enginebay_runner_v2.capture import capture, input_names
from enginebay_runner_v2.passes.origins import constant_tensor
from support.graph_steps import MAX_MODEL_LEN, capture_tiny, tiny_step
from support.tiny_models import edit_config, make_model


def placeholders(module: torch.fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


def test_inputs_stand_in_order_before_the_constants() -> None:
    step = tiny_step("gemma2")
    names = placeholders(step.captured.graph_module)
    caches = [f"{what}_cache_{layer}" for layer in range(2) for what in ("key", "value")]
    expected = [*input_names(len(step.captured.groups)), *caches]
    assert names[: len(expected)] == expected
    assert names[3:7] == ["slots_0", "block_tables_0", "slots_1", "block_tables_1"]
    assert set(names[len(expected) :]) == set(step.context.constants)


def test_a_tied_weight_is_one_constant_and_buffers_are_written_down() -> None:
    step = tiny_step("llama")
    weights = [origin.name for origin in step.context.constants.values() if isinstance(origin, Parameter)]
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights
    assert len(weights) == len(set(weights))
    (buffer,) = [origin for origin in step.context.constants.values() if isinstance(origin, Table)]
    assert buffer.settings["shape"] == [4]


def test_frequencies_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    import transformers

    folder = make_model(tmp_path / "model", "llama-rope-yarn", num_hidden_layers=1)
    _, context = capture_tiny(folder)
    loaded = transformers.LlamaForCausalLM.from_pretrained(folder)
    ours = constant_tensor(context.constants["model_rotary_emb_inv_freq"], {})
    assert torch.equal(ours, loaded.model.rotary_emb.inv_freq)


def test_no_file_of_weights_is_read(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama", num_hidden_layers=1)
    info = read_model_info(folder)
    (folder / "model.safetensors").write_bytes(b"nothing that is read")
    captured = capture(folder, info, dtype="bfloat16", max_model_len=64)
    weight = next(node for node in captured.graph_module.graph.nodes if node.name == "model_norm_weight")
    assert weight.meta["val"].dtype == torch.bfloat16


def test_a_window_of_the_whole_length_is_none(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "mistral-window", num_hidden_layers=1, sliding_window=MAX_MODEL_LEN)
    captured, _ = capture_tiny(folder)
    assert [group.window for group in captured.groups] == [None]
    (attention,) = [node for node in captured.graph_module.graph.nodes if "paged_attention" in str(node.target)]
    assert attention.args[10] == 0


def test_a_choice_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "mixtral", num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"^MixtralForCausalLM cannot be captured as a graph: .* is no operator"):
        capture_tiny(folder)


def test_a_mask_of_its_own_is_refused_as_by_every_paged_runner(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama", num_hidden_layers=1)
    edit_config(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    with pytest.raises(ModelError, match=r"^model\.rotary_emb has rope type 'dynamic'; run exactly are default, "):
        capture_tiny(folder)

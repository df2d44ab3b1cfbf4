"""The probe looks at what reaches attention, and refuses what the paged function would not compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.worker.loader import load_causal_lm
from enginebay.worker.probing.groups import arrange, kv_spec
from enginebay.worker.probing.probe import probe
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v1.attention import ATTENTION, register
from support.tiny_models import edit_config, make_model


def test_it_sees_heads_widths_and_windows(load: Callable[[str, str], Any]) -> None:
    full, windowed = LayerShape(6, 2, 8, 8, None), LayerShape(6, 2, 8, 8, 9)
    assert probe(load("qwen2-mixed-window", "Qwen2ForCausalLM")) == (full, windowed, windowed)
    assert probe(load("qwen3", "Qwen3ForCausalLM")) == (LayerShape(6, 2, 16, 16, None),) * 3
    assert probe(load("deepseek-v2", "DeepseekV2ForCausalLM")) == (LayerShape(6, 6, 16, 12, None),) * 3


def test_it_leaves_nothing_on_the_modules(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    probe(model)
    assert not any("eb" in vars(module) for module in model.modules())


def test_a_layer_that_does_not_call_attention(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ModelError, match=r"called by layers \[0, 2\], instead of once by each of 3 in order"):
        probe(model)


def test_a_layer_that_calls_attention_twice(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[1].self_attn
    once = attention.forward

    def twice(**keywords: Any) -> Any:
        once(**keywords)
        return once(**keywords)

    attention.forward = twice
    with pytest.raises(ModelError, match=r"called by layers \[0, 1, 1, 2\]"):
        probe(model)


@pytest.mark.parametrize("option", ["position_bias", "indices", "something_new"])
def test_an_option_that_it_does_not_know(load: Callable[[str, str], Any], option: str) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[2].self_attn
    original = attention.forward
    attention.forward = lambda **keywords: original(**keywords, **{option: torch.ones(1)})
    with pytest.raises(ModelError, match=f"^layer 2: attention is given {option}, unknown to paged attention$"):
        probe(model)


def test_a_mask_of_the_models_own(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[0].self_attn
    original = attention.forward
    attention.forward = lambda **keywords: original(**{**keywords, "attention_mask": torch.zeros(1, 1, 3, 3)})
    with pytest.raises(
        ModelError, match=r"^layer 0 attends with a mask of its own, which paged attention does not have$"
    ):
        probe(model)


def test_attention_modules_that_are_not_one_per_layer(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(ModelError, match=r"^LlamaForCausalLM has 3 attention modules for 3 layers: not one in each$"):
        probe(model)


def test_layers_of_unlike_shape_each_have_their_own_pages(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[1].self_attn
    attention.num_key_value_groups = 1
    for part, size in ((attention.k_proj, 48), (attention.v_proj, 48)):
        part.weight = torch.nn.Parameter(torch.randn(size, 48), requires_grad=False)
    shapes = probe(model)
    assert [shape.kv_heads for shape in shapes] == [2, 6, 2]
    groups = arrange([shape.window for shape in shapes], range(3))
    assert kv_spec(shapes, groups, block_size=16, element_size=2).groups[0].bytes_per_block == 16 * 2 * (2 + 6 + 2) * (
        8 + 8
    )


@pytest.mark.parametrize(
    ("family", "architecture", "heads"),
    [
        ("youtu", "YoutuForCausalLM", {"num_key_value_heads": 3}),
        ("deepseek-v3", "DeepseekV3ForCausalLM", {"num_attention_heads": 12}),
    ],
)
def test_heads_that_transformers_would_repeat_once_too_often(
    tmp_path: Path, family: str, architecture: str, heads: dict[str, int]
) -> None:
    folder = make_model(tmp_path / "model", family, **heads)
    with pytest.raises(ModelError) as caught:
        _probe(folder, architecture)
    count = heads.get("num_attention_heads", 6)
    assert str(caught.value) == (
        f"layer 0: {count} heads attend to {count} KV heads, and num_key_value_heads in config.json has each repeated "
        "2 times: transformers cannot run it"
    )


def _given(attention: Any, **changed: Any) -> None:
    """From now on the module's attention is called with these options too."""
    original = attention.forward
    attention.forward = lambda **keywords: original(**{**keywords, **changed})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("softcap", 0.0, "layer 2: softcap is 0.0, and scores are capped at more than 0"),
        ("softcap", "x", "layer 2: softcap is 'x', and scores are capped at more than 0"),
        ("s_aux", torch.ones(2), "layer 2: s_aux is no tensor of 6 sinks, one for each head"),
        ("s_aux", 1.0, "layer 2: s_aux is no tensor of 6 sinks, one for each head"),
        (
            "sliding_window",
            3,
            "layer 2: attention is given a window of 3, and its mask has None: it cannot be run exactly",
        ),
    ],
)
def test_an_option_of_a_value_that_means_nothing(
    load: Callable[[str, str], Any], option: str, value: object, message: str
) -> None:
    model = load("llama", "LlamaForCausalLM")
    _given(model.model.layers[2].self_attn, **{option: value})
    with pytest.raises(ModelError) as caught:
        probe(model)
    assert str(caught.value) == message


def test_caps_and_sinks_are_served(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    _given(model.model.layers[2].self_attn, softcap=3, s_aux=torch.ones(6))
    assert probe(model) == (LayerShape(6, 2, 8, 8, None),) * 3


def test_a_window_that_only_the_mask_tells(load: Callable[[str, str], Any]) -> None:
    """Some classes do not hand the window to attention; the mask that they ask for has it."""
    windows = [shape.window for shape in probe(load("phimoe", "PhimoeForCausalLM"))]
    assert windows == [12, 12, 12]


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_length(tmp_path: Path, rope: str) -> None:
    parameters = {
        "rope_type": rope,
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    with pytest.raises(ModelError) as caught:
        _probe(make_model(tmp_path / "model", "llama", rope_parameters=parameters), "LlamaForCausalLM")
    assert str(caught.value) == (
        f"model.rotary_emb has rope type '{rope}'; run exactly are default, linear, llama3, yarn"
    )


def test_a_window_that_only_transformers_cache_has(tmp_path: Path) -> None:
    folder = edit_config(make_model(tmp_path / "model", "llama"), sliding_window=8)
    with pytest.raises(ModelError) as caught:
        _probe(folder, "LlamaForCausalLM")
    assert str(caught.value) == (
        "layer 0 sees all tokens, and transformers' cache keeps 8 of them, as config.json says: "
        "it cannot be run exactly"
    )
    assert _probe(edit_config(folder, sliding_window=512), "LlamaForCausalLM"), "as long as a text may be"


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("family", "architecture", "config", "message"),
    [
        (
            "mistral-window",
            "MistralForCausalLM",
            {"layer_types": [FULL] * 3},
            "layer 0 attends with a window of 12, and config.json has it as 'full_attention' with None",
        ),
        (
            "mistral-window",
            "MistralForCausalLM",
            {"layer_types": [SLIDING, FULL, SLIDING]},
            "layer 1 attends with a window of 12, and config.json has it as 'full_attention' with None",
        ),
        (
            "llama",
            "LlamaForCausalLM",
            {"layer_types": [SLIDING] * 3, "sliding_window": 8},
            "layer 0 attends with a window of None, and config.json has it as 'sliding_attention' with 8",
        ),
    ],
)
def test_windows_that_are_not_those_of_layer_types(
    tmp_path: Path, family: str, architecture: str, config: dict[str, Any], message: str
) -> None:
    """transformers runs such a model as another class, or with masks of its own: other tokens than ours."""
    with pytest.raises(ModelError) as caught:
        _probe(edit_config(make_model(tmp_path / "model", family), **config), architecture)
    assert str(caught.value) == f"{message}: it cannot be run exactly"


def test_a_window_that_config_json_switches_off(tmp_path: Path) -> None:
    config = {"layer_types": [FULL, FULL, SLIDING], "use_sliding_window": False, "sliding_window": 8}
    with pytest.raises(ModelError) as caught:
        _probe(edit_config(make_model(tmp_path / "model", "qwen2"), **config), "Qwen2ForCausalLM")
    assert str(caught.value) == (
        "Qwen2ForCausalLM does not run as config.json describes it: "
        "ValueError: Could not find a `sliding_window` argument in the config, or it is not set"
    )


@pytest.mark.parametrize(
    ("family", "architecture", "config", "windows"),
    [
        ("mistral-window", "MistralForCausalLM", {"layer_types": [SLIDING] * 3}, (12, 12, 12)),
        ("mistral-no-window", "MistralForCausalLM", {"layer_types": [FULL] * 3}, (None, None, None)),
        ("qwen2-mixed-window", "Qwen2ForCausalLM", {"layer_types": [SLIDING, FULL, SLIDING]}, (9, None, 9)),
        ("mistral-window", "MistralForCausalLM", {"sliding_window": 2}, (2, 2, 2)),
    ],
)
def test_windows_that_agree(
    tmp_path: Path, family: str, architecture: str, config: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    shapes = _probe(edit_config(make_model(tmp_path / "model", family), **config), architecture)
    assert tuple(shape.window for shape in shapes) == windows


@pytest.mark.parametrize("window", [1, 0, -1])
def test_a_window_that_shows_a_token_nothing(tmp_path: Path, window: int) -> None:
    folder = edit_config(make_model(tmp_path / "model", "mistral-window"), sliding_window=window)
    with pytest.raises(ModelError) as caught:
        _probe(folder, "MistralForCausalLM")
    assert str(caught.value) == (
        f"layer 0 has a window of {window}, and it must be 2 or more, or null: "
        "with 1 transformers' own cache keeps every token"
    )


def test_a_config_that_fails_when_the_model_runs(tmp_path: Path) -> None:
    folder = edit_config(make_model(tmp_path / "model", "llama"), return_dict=False)
    with pytest.raises(ModelError) as caught:
        _probe(folder, "LlamaForCausalLM")
    assert str(caught.value) == (
        "LlamaForCausalLM does not run as config.json describes it: "
        "AttributeError: 'tuple' object has no attribute 'last_hidden_state'"
    )


def test_no_memory_is_no_fault_of_the_config(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")

    def forward(**_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    model.model.layers[1].self_attn.forward = forward
    with pytest.raises(torch.OutOfMemoryError):
        probe(model)


def _probe(folder: Path, architecture: str) -> tuple[LayerShape, ...]:
    register()
    return probe(load_causal_lm(folder, architecture=architecture, dtype="float32", device="cpu", attention=ATTENTION))

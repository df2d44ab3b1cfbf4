"""Which models runner v1 takes is an allow-list over the raw config.json; a refusal says why."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from enginebay.messages import ModelInfo
from enginebay_runner_v1.families import _MODEL_TYPES, ARCHITECTURES, supports

KNOWN = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"


def info(architecture: str = "LlamaForCausalLM", **config: Any) -> ModelInfo:
    return ModelInfo(
        path="/models/x",
        name="x",
        architecture=architecture,
        model_type=_MODEL_TYPES.get(architecture, "other"),
        vocab_size=10,
        max_model_len=64,
        dtype="float32",
        config=config,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rope_scaling": None, "layer_types": None, "sliding_window": 4096},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"layer_types": ["full_attention", "full_attention"]},
        {"sliding_window": 0, "use_sliding_window": False},
    ],
)
def test_supported(architecture: str, config: dict[str, Any]) -> None:
    assert supports(info(architecture, **config)) is None


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("Llama4ForCausalLM", "architecture Llama4ForCausalLM is not run exactly: it attends in chunks"),
        (
            "Qwen3NextForCausalLM",
            (
                "architecture Qwen3NextForCausalLM is not run exactly: "
                "some of its layers keep a state instead of keys and values"
            ),
        ),
        (
            "FalconForCausalLM",
            (
                "architecture FalconForCausalLM is not run exactly: "
                "transformers does not route its attention through the interface"
            ),
        ),
        (
            "Gemma3ForCausalLM",
            f"architecture Gemma3ForCausalLM is not among those known to run exactly: {KNOWN}",
        ),
        ("", f"architecture unknown is not among those known to run exactly: {KNOWN}"),
    ],
)
def test_other_architectures_are_refused_by_name(architecture: str, reason: str) -> None:
    assert supports(info(architecture)) == reason


@pytest.mark.parametrize("said", sorted({*_MODEL_TYPES.values(), "phi3"}))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_type_that_is_not_the_architectures_is_refused(architecture: str, said: str) -> None:
    own = _MODEL_TYPES[architecture]
    refusal = f"config.json has model_type {said} with architecture {architecture}, which is of {own}"
    assert supports(replace(info(architecture), model_type=said)) == (None if said == own else refusal)


def test_an_absent_model_type_contradicts_nothing() -> None:
    assert supports(replace(info(), model_type="")) is None


def test_the_model_types_are_those_of_transformers() -> None:
    import transformers

    assert {name: getattr(transformers, name).config_class.model_type for name in ARCHITECTURES} == _MODEL_TYPES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_of_both_kinds(architecture: str) -> None:
    answer = supports(info(architecture, layer_types=["full_attention", "sliding_attention"]))
    assert answer == (
        "config.json has layer_types of both kinds, and MistralForCausalLM has one window for all layers "
        "(transformers takes such a model for a Ministral)"
        if architecture == "MistralForCausalLM"
        else None
    )


@pytest.mark.parametrize("window", [0, -1, 1.5, "8", True, [4]])
@pytest.mark.parametrize("use", [{}, {"use_sliding_window": True}])
def test_a_window_that_shows_a_token_nothing(window: object, use: dict[str, bool]) -> None:
    assert supports(info("Qwen2ForCausalLM", sliding_window=window, **use)) == (
        f"config.json has sliding_window {window!r}, and a token sees at least itself: 1 or more, or null"
    )


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
@pytest.mark.parametrize(
    "spelling",
    [
        lambda rope: {"rope_scaling": {"type": rope, "factor": 2.0}},
        lambda rope: {"rope_scaling": {"rope_type": rope, "factor": 2.0}},
        lambda rope: {"rope_parameters": {"rope_type": rope}},
        lambda rope: {"rope_parameters": {"full_attention": {"rope_type": rope}}},
    ],
)
def test_rope_that_depends_on_the_length_is_refused(rope: str, spelling: Any) -> None:
    assert supports(info(**spelling(rope))) == (
        f"rope type '{rope}' is not run exactly: "
        "its frequencies change with the length, which chunks and batches do not share"
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope type 'spiral' is not run exactly: known are "),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "config.json has layer_types 'chunked_attention'; "),
        ({"layer_types": ["a\n", "b"]}, r"config.json has layer_types 'a\n', 'b'; known are "),
        ({"rope_scaling": {"type": "a\n"}}, r"rope type 'a\n' is not run exactly: known are "),
        ({"layer_types": 5}, "config.json has layer_types that are no list of names"),
        ({"layer_types": "full_attention"}, "config.json has layer_types that are no list of names"),
        ({"layer_types": [None]}, "config.json has layer_types that are no list of names"),
        ({"layer_types": [["full_attention"]]}, "config.json has layer_types that are no list of names"),
        ({"quantization_config": {"bits": 4}}, "config.json sets quantization_config: its weights are quantized"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "config.json sets auto_map: the model needs Python code of its own"),
        ({"attn_logit_softcapping": 30.0}, "config.json sets attn_logit_softcapping: it caps attention scores"),
    ],
)
def test_oddities_are_refused(config: dict[str, Any], reason: str) -> None:
    answer = supports(info(**config))
    assert answer is not None
    assert answer.startswith(reason)


def test_the_descriptor_is_light() -> None:
    """Asking it whether it supports a model imports neither torch nor transformers (in a fresh process). P9"""
    code = (
        "import sys, enginebay_runner_v1.plugin as p; [one] = p.enginebay_register_runners(); "
        "print(one.name, one.preference, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "v1 10 []\n"

"""Which models runner v1 takes is an allow-list over the raw config.json; a refusal says why."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from enginebay.messages import ModelInfo
from enginebay.worker.probing.families import supports
from enginebay.worker.probing.known import EXPERT_KEYS, FAMILIES, OWN_WAYS
from support.repository import ROOT

CAPPED = {"Gemma2ForCausalLM", "VaultGemmaForCausalLM"}


def info(architecture: str = "LlamaForCausalLM", **config: Any) -> ModelInfo:
    return ModelInfo(
        path="/models/x",
        name="x",
        architecture=architecture,
        model_type=FAMILIES[architecture].model_type if architecture in FAMILIES else "other",
        vocab_size=10,
        max_model_len=64,
        dtype="float32",
        config=config,
    )


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
def test_supported(config: dict[str, Any]) -> None:
    for architecture in FAMILIES:
        assert supports(info(architecture, **config)) is None


def test_architectures_of_which_the_reason_is_known() -> None:
    for architecture in OWN_WAYS:
        assert (
            supports(info(architecture)) == f"architecture {architecture} is not run exactly: {OWN_WAYS[architecture]}"
        )


def test_what_is_silently_wrong_is_refused_by_its_reason() -> None:
    expected = {
        "Llama4ForCausalLM": "it attends in chunks",
        "Qwen3NextForCausalLM": "some of its layers keep a state instead of keys and values",
        "FalconH1ForCausalLM": "its layers keep a state beside keys and values",
        "FalconForCausalLM": "transformers does not route its attention through the interface",
        "Gemma3ForConditionalGeneration": (
            "it takes pictures or sound beside text; its text model alone is another architecture"
        ),
    }
    assert {name: OWN_WAYS[name] for name in expected} == expected
    assert not OWN_WAYS.keys() & FAMILIES.keys()


@pytest.mark.parametrize(
    ("architecture", "closest"),
    [
        ("LlamaForCasualLM", "; the closest is LlamaForCausalLM"),
        ("Gemma3ForCausalLm", "; the closest is Gemma3ForCausalLM"),
        ("SomethingElse", ""),
        ("", ""),
    ],
)
def test_an_unknown_architecture_is_told_of_a_close_one(architecture: str, closest: str) -> None:
    assert supports(info(architecture)) == (
        f"architecture {architecture or 'unknown'} is not among those known to run exactly{closest}; "
        f"docs/architectures.md lists all {len(FAMILIES)}"
    )


def test_a_model_type_that_is_not_the_architectures_is_refused() -> None:
    for architecture in FAMILIES:
        own = FAMILIES[architecture].model_type
        for said in {*(family.model_type for family in FAMILIES.values()), "other"}:
            refusal = f"config.json has model_type {said} with architecture {architecture}, which is of {own}"
            assert supports(replace(info(architecture), model_type=said)) == (None if said == own else refusal)


def test_an_absent_model_type_contradicts_nothing() -> None:
    assert supports(replace(info(), model_type="")) is None


def test_the_model_types_are_those_of_transformers() -> None:
    import transformers

    theirs = {name: getattr(transformers, name).config_class.model_type for name in FAMILIES}
    assert theirs == {name: family.model_type for name, family in FAMILIES.items()}


def test_layers_of_both_kinds() -> None:
    for architecture in FAMILIES:
        answer = supports(info(architecture, layer_types=["full_attention", "sliding_attention"]))
        expected = {
            "none": f"config.json has layer_types with 'sliding_attention', and {architecture} has no window",
            "one": f"config.json has layer_types of both kinds, and {architecture} has one window for all layers",
            "layers": None,
        }[FAMILIES[architecture].windows]
        if architecture == "MistralForCausalLM":
            expected = f"{expected} (transformers takes such a model for a Ministral)"
        assert answer == expected


def test_a_window_that_only_transformers_cache_has() -> None:
    """It drops keys that are out of a window by the name in config.json, whether or not the class reads the name."""
    for architecture in FAMILIES:
        no_window = FAMILIES[architecture].windows == "none"
        refusal = f"config.json has sliding_window 63, and {architecture} has no window" if no_window else None
        assert supports(info(architecture, sliding_window=63)) == refusal
        assert supports(info(architecture, sliding_window=64)) is None, "as long as a text may be"


def test_caps_and_experts_are_for_those_who_have_them() -> None:
    for architecture in FAMILIES:
        answer = supports(info(architecture, attn_logit_softcapping=30.0))
        refusal = "config.json sets attn_logit_softcapping: it caps attention scores"
        assert answer == (None if architecture in CAPPED else refusal)
        for key in EXPERT_KEYS:
            refusal = f"config.json sets {key}: its layers choose among experts"
            assert supports(info(architecture, **{key: 8})) == (
                None if FAMILIES[architecture].reads & EXPERT_KEYS else refusal
            )
        assert supports(info(architecture, attn_logit_softcapping=None, num_experts=0)) is None


@pytest.mark.parametrize("window", [1, 0, -1, 1.5, "8", True, [4]])
@pytest.mark.parametrize("use", [{}, {"use_sliding_window": True}, {"use_sliding_window": None}])
def test_a_window_that_shows_a_token_nothing(window: object, use: dict[str, bool | None]) -> None:
    assert supports(info("Qwen2ForCausalLM", sliding_window=window, **use)) == (
        f"config.json has sliding_window {window!r}, and it must be 2 or more, or null: "
        "with 1 transformers' own cache keeps every token"
    )


def test_the_smallest_window() -> None:
    for architecture, family in FAMILIES.items():
        if family.windows != "none":
            assert supports(info(architecture, sliding_window=1)) is not None
            assert supports(info(architecture, sliding_window=2)) is None


@pytest.mark.parametrize("rope", ["dynamic", "longrope", "su"])
@pytest.mark.parametrize(
    "spelling",
    [
        lambda rope: {"rope_scaling": {"type": rope, "factor": 2.0}},
        lambda rope: {"rope_scaling": {"rope_type": rope, "factor": 2.0}},
        lambda rope: {"rope_scaling": {"rope_type": rope, "type": "linear", "factor": 2.0}},
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
        ({"is_causal": False}, "config.json sets is_causal to false: its tokens see those after them"),
        ({"use_bidirectional_attention": True}, "config.json sets use_bidirectional_attention: its tokens see those"),
        ({"index_topk": 8}, "config.json sets index_topk: its tokens see a chosen few of those before them"),
        ({"alibi": True}, "config.json sets alibi: it adds a position bias to the scores"),
        ({"attention_chunk_size": 8}, "config.json sets attention_chunk_size: it attends in chunks"),
        ({"add_cross_attention": True}, "config.json sets add_cross_attention: it attends to a second sequence"),
        ({"is_encoder_decoder": True}, "config.json sets is_encoder_decoder: it is an encoder with a decoder"),
        ({"pruned_heads": {"0": [1]}}, "config.json sets pruned_heads: its heads are pruned"),
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


def test_the_page_lists_what_the_table_has() -> None:
    """docs/architectures.md and the table say the same, and nothing is in one alone."""
    text = (ROOT / "docs" / "architectures.md").read_text("utf-8")
    exact, refused = text.split("## Refused")
    assert set(re.findall(r"`(\w+(?:ForCausalLM|LMHeadModel))`", exact)) == set(FAMILIES)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", refused, flags=re.MULTILINE))
    assert rows == OWN_WAYS

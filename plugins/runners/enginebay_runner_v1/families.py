"""Which models runner ``v1`` runs exactly, read from the raw ``config.json``: an allow-list, never a guess.

An architecture outside the list may run without an exception and give wrong tokens (its mask or its cache is its own),
so it is refused by name. What the list promises is looked at again when the model is loaded (``probe``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from enginebay.messages import ModelInfo

__all__ = ["ARCHITECTURES", "supports"]

_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architecture → ``model_type``: a config in which the two differ is run one way here and another way elsewhere."""
ARCHITECTURES = tuple(_MODEL_TYPES)

_OWN_WAYS = {
    "Llama4ForCausalLM": "it attends in chunks",
    "Llama4ForConditionalGeneration": "it attends in chunks",
    "Qwen3NextForCausalLM": "some of its layers keep a state instead of keys and values",
    "Mamba2ForCausalLM": "it keeps a state instead of keys and values",
    "MambaForCausalLM": "it keeps a state instead of keys and values",
    "JambaForCausalLM": "some of its layers keep a state instead of keys and values",
    "Lfm2ForCausalLM": "some of its layers are convolutions with a state",
    "FalconH1ForCausalLM": "its layers keep a state beside keys and values",
    "RecurrentGemmaForCausalLM": "some of its layers keep a state instead of keys and values",
    "MiniMaxForCausalLM": "some of its layers attend linearly",
    "DiffLlamaForCausalLM": "it subtracts two attention maps",
    "BloomForCausalLM": "it adds a position bias to the scores",
    "FalconForCausalLM": "transformers does not route its attention through the interface",
    "MptForCausalLM": "it adds a position bias to the scores",
    "GPTNeoForCausalLM": "transformers does not route its attention through the interface",
}
"""Architectures of which it is known why the attention interface does not carry them."""

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ROPE_REASONS = {
    "dynamic": "its frequencies change with the length, which chunks and batches do not share",
    "longrope": "its frequencies change with the length, which chunks and batches do not share",
}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ODDITIES = {
    "auto_map": "the model needs Python code of its own, and code from a model folder is never run",
    "quantization_config": "its weights are quantized",
    "attention_chunk_size": "it attends in chunks",
    "attn_logit_softcapping": "it caps attention scores",
    "alibi": "it adds a position bias to the scores",
    "add_cross_attention": "it attends to a second sequence",
    "is_encoder_decoder": "it is an encoder with a decoder",
    "pruned_heads": "its heads are pruned",
    "num_experts": "its layers choose among experts",
    "num_local_experts": "its layers choose among experts",
}
"""Keys of ``config.json`` that, set to anything but nothing, mean work that this runner does not do."""


def supports(model: ModelInfo) -> str | None:
    """None when the model is run exactly, else the reason why not, in a sentence without its end."""
    if model.architecture not in ARCHITECTURES:
        why = _OWN_WAYS.get(model.architecture)
        known = ", ".join(ARCHITECTURES)
        return (
            f"architecture {model.architecture} is not run exactly: {why}"
            if why
            else (f"architecture {model.architecture or 'unknown'} is not among those known to run exactly: {known}")
        )
    if model.model_type not in ("", _MODEL_TYPES[model.architecture]):
        return (
            f"config.json has model_type {model.model_type} with architecture {model.architecture}, "
            f"which is of {_MODEL_TYPES[model.architecture]}"
        )
    for key, why in _ODDITIES.items():
        if model.config.get(key):
            return f"config.json sets {key}: {why}"
    if (why := _layers(model) or _window(model.config)) is not None:
        return why
    for rope in _rope_types(model.config):
        if rope not in _ROPE_TYPES:
            why = _ROPE_REASONS.get(rope, f"known are {', '.join(_ROPE_TYPES)}")
            return f"rope type {rope!r} is not run exactly: {why}"
    return None


def _layers(model: ModelInfo) -> str | None:
    """What is wrong with the kinds of layers that the config names."""
    kinds = model.config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return "config.json has layer_types that are no list of names"
    if odd := sorted(set(kinds) - set(_LAYER_TYPES)):
        return f"config.json has layer_types {', '.join(map(repr, odd))}; known are {', '.join(_LAYER_TYPES)}"
    if model.architecture == "MistralForCausalLM" and len(set(kinds)) > 1:
        return (
            "config.json has layer_types of both kinds, and MistralForCausalLM has one window for all layers "
            "(transformers takes such a model for a Ministral)"
        )
    return None


def _window(config: Mapping[str, Any]) -> str | None:
    """What is wrong with the window, where one is used."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False or (type(window) is int and window >= 1):
        return None
    return f"config.json has sliding_window {window!r}, and a token sees at least itself: 1 or more, or null"


def _rope_types(config: Mapping[str, Any]) -> Iterator[str]:
    """Every rope type that the config names, in the old spelling and the new, for all layers or by layer type."""
    for key in ("rope_scaling", "rope_parameters"):
        section = config.get(key)
        if not isinstance(section, Mapping):
            continue
        for part in (section, *(value for value in section.values() if isinstance(value, Mapping))):
            named = part.get("rope_type", part.get("type"))
            if named is not None:
                yield str(named)

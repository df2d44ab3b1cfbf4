"""Which models paged attention runs exactly, read from the raw ``config.json``: an allow-list, never a guess.

An architecture outside the list may run without an exception and give wrong tokens (its mask or its cache is its own),
so it is refused by name. What the list promises is looked at again when the model is loaded (``probe``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from enginebay.messages import ModelInfo
from enginebay.worker.probing.known import EXPERT_KEYS, FAMILIES, OWN_WAYS, ROPE_TYPES, Family

__all__ = ["ROPE_TYPES", "supports"]

_LENGTH_BOUND = "its frequencies change with the length, which chunks and batches do not share"
_ROPE_REASONS = {"dynamic": _LENGTH_BOUND, "longrope": _LENGTH_BOUND, "su": _LENGTH_BOUND}
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
    "use_bidirectional_attention": "its tokens see those after them",
    "index_topk": "its tokens see a chosen few of those before them",
    **dict.fromkeys(EXPERT_KEYS, "its layers choose among experts"),
}
"""Keys of ``config.json`` that, set to anything but nothing, mean work which only some families' modules do."""


def supports(model: ModelInfo) -> str | None:
    """None when the model is run exactly, else the reason why not, in a sentence without its end."""
    family = FAMILIES.get(model.architecture)
    if family is None:
        return _unknown(model.architecture)
    if model.model_type not in ("", family.model_type):
        return (
            f"config.json has model_type {model.model_type} with architecture {model.architecture}, "
            f"which is of {family.model_type}"
        )
    for key, meaning in _ODDITIES.items():
        if model.config.get(key) and key not in family.reads:
            return f"config.json sets {key}: {meaning}"
    if model.config.get("is_causal") is False:
        return "config.json sets is_causal to false: its tokens see those after them"
    if (why := _layers(model, family) or _window(model, family)) is not None:
        return why
    for rope in _rope_types(model.config):
        if rope not in ROPE_TYPES:
            reason = _ROPE_REASONS.get(rope, f"known are {', '.join(ROPE_TYPES)}")
            return f"rope type {rope!r} is not run exactly: {reason}"
    return None


def _unknown(architecture: str) -> str:
    if (why := OWN_WAYS.get(architecture)) is not None:
        return f"architecture {architecture} is not run exactly: {why}"
    close = get_close_matches(architecture, FAMILIES, n=1, cutoff=0.8)
    return (
        f"architecture {architecture or 'unknown'} is not among those known to run exactly"
        + (f"; the closest is {close[0]}" if close else "")
        + f"; docs/architectures.md lists all {len(FAMILIES)}"
    )


def _layers(model: ModelInfo, family: Family) -> str | None:
    """What is wrong with the kinds of layers that the config names."""
    kinds = model.config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        return "config.json has layer_types that are no list of names"
    if odd := sorted(set(kinds) - set(_LAYER_TYPES)):
        return f"config.json has layer_types {', '.join(map(repr, odd))}; known are {', '.join(_LAYER_TYPES)}"
    if family.windows == "none" and "sliding_attention" in kinds:
        return f"config.json has layer_types with 'sliding_attention', and {model.architecture} has no window"
    if family.windows == "one" and len(set(kinds)) > 1:
        return f"config.json has layer_types of both kinds, and {model.architecture} has one window for all layers" + (
            " (transformers takes such a model for a Ministral)" if family.model_type == "mistral" else ""
        )
    return None


def _window(model: ModelInfo, family: Family) -> str | None:
    """What is wrong with the window, where one is used."""
    window = model.config.get("sliding_window")
    if window is None or model.config.get("use_sliding_window") is False:
        return None
    if type(window) is not int or window < 2:
        return (
            f"config.json has sliding_window {window!r}, and it must be 2 or more, or null: "
            "with 1 transformers' own cache keeps every token"
        )
    if family.windows == "none" and window < model.max_model_len:
        return f"config.json has sliding_window {window}, and {model.architecture} has no window"
    return None


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

"""Rotary embedding parameters of a GGUF model, as config.json says them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from enginebay.errors import ModelError

if TYPE_CHECKING:
    from enginebay.models._metadata import Metadata

FACTORS_TENSOR = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_parameters(meta: Metadata) -> dict[str, Any]:
    """``rope_parameters`` of config.json: default, linear, yarn, or llama3 when the file brings its factors.

    A factor without a type is linear, and ``rope.scale_linear`` is its older name, as llama.cpp reads them.
    """
    theta = meta.number("rope.freq_base", 10000.0)
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 1.0))
    kind = meta.text("rope.scaling.type", "linear")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        if FACTORS_TENSOR in meta.file.tensors:
            return _llama3(meta, theta)
        return {"rope_type": "default", "rope_theta": theta}
    if FACTORS_TENSOR in meta.file.tensors:
        raise ModelError(f"{meta.file.path}: rope scaling '{kind}' beside '{FACTORS_TENSOR}' cannot be converted")
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = meta.size("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise ModelError(f"{meta.file.path}: rope scaling '{kind}' cannot be converted; known: linear, none, yarn")


def _llama3(meta: Metadata, theta: float) -> dict[str, Any]:
    """The file has one divisor per frequency instead of the rule; recognise the rule, and prove it by recomputing."""
    tensor = meta.file.tensors[FACTORS_TENSOR]
    if tensor.kind != "F32":
        raise ModelError(f"{meta.file.path}: tensor '{FACTORS_TENSOR}' is of type {tensor.kind}, not F32")
    found = meta.file.read(tensor.start, tensor.size).view("<f4")
    factor = round(float(found.max()), 4)  # the file holds quotients in float32
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    original = _LLAMA3["original_max_position_embeddings"]
    frequencies = theta ** -(np.arange(len(found), dtype=np.float64) / len(found))
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if not np.allclose(found, expected, rtol=1e-4):
        raise ModelError(f"{meta.file.path}: the factors in '{FACTORS_TENSOR}' follow no rule that is known here")
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, **_LLAMA3}

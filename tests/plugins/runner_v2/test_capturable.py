"""Which models runner v2 captures: those that paged attention runs exactly, without the kinds that are named."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.messages import ModelInfo
from enginebay.worker.probing.known import FAMILIES
from enginebay_runner_v2.capturable import NOT_CAPTURED, supports


def model(architecture: str, **config: Any) -> ModelInfo:
    return ModelInfo(
        name="m",
        path="/m",
        architecture=architecture,
        model_type=FAMILIES[architecture].model_type,
        dtype="float32",
        vocab_size=100,
        max_model_len=100,
        config=config,
    )


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel"]
)
def test_a_dense_model_is_captured(architecture: str) -> None:
    assert supports(model(architecture)) is None


def test_queries_and_keys_may_be_clamped_in_place() -> None:
    assert supports(model("OlmoForCausalLM", clip_qkv=8.0)) is None


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("MixtralForCausalLM", "its layers choose among experts, for which the graph has no operators"),
        ("GPTJForCausalLM", "it looks positions up in a table that no file holds"),
    ],
)
def test_what_is_not_captured_is_refused_with_the_reason(architecture: str, why: str) -> None:
    assert supports(model(architecture)) == (
        f"architecture {architecture} is not captured as a graph: {why}; runner v1 runs it"
    )


def test_what_no_paged_runner_runs_is_refused_as_by_all() -> None:
    assert supports(model("LlamaForCausalLM", auto_map={"AutoModel": "x"})) == (
        "config.json sets auto_map: the model needs Python code of its own, and code from a model folder is never run"
    )


def test_only_known_architectures_are_named() -> None:
    assert set(NOT_CAPTURED) < set(FAMILIES)

"""The probe's single checks, each alone: shapes, options, rules of masks, and what only the second forward shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.worker.probing.masks import MaskRules
from enginebay.worker.probing.probe import probe

Load = Callable[[str, str], Any]


def refusal(model: Any) -> str:
    with pytest.raises(ModelError) as caught:
        probe(model)
    return str(caught.value)


@pytest.mark.parametrize(("keys", "values"), [(4, 4), (2, 6), (2, 1)])
def test_heads_that_do_not_fit_each_other(load: Load, keys: int, values: int) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[1].self_attn
    for part, heads in ((attention.k_proj, keys), (attention.v_proj, values)):
        part.weight = torch.nn.Parameter(torch.randn(heads * 8, 48), requires_grad=False)
    assert refusal(model) == (
        f"layer 1: attention works on query [1, 6, 4, 8], key [1, {keys}, 4, 8], value [1, {values}, 4, 8], "
        "which no paged cache is made for"
    )


@pytest.mark.parametrize(
    "change", [{"scaling": None}, {"training": True, "attention_dropout": 0.5}], ids=["scale", "dropout"]
)
def test_no_scale_or_dropout(load: Load, change: dict[str, Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    for name, value in change.items():
        setattr(model.model.layers[2].self_attn, name, value)
    assert refusal(model) == "layer 2: attention is called without a scale, or with dropout"


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj"])
def test_each_of_query_key_and_value_is_compared(load: Load, part: str) -> None:
    model = load("llama", "LlamaForCausalLM")
    linear = getattr(model.model.layers[2].self_attn, part)
    original = linear.forward
    linear.forward = lambda hidden: original(hidden).cumsum(dim=1)
    assert refusal(model).startswith("layer 2: what reaches attention depends on more than the token")


def test_a_layer_that_does_not_call_attention_every_time(load: Load) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[2].self_attn  # the last: no later one would show it
    original, calls = attention.forward, []

    def once(**keywords: Any) -> Any:
        calls.append(1)
        return original(**keywords) if len(calls) == 1 else (torch.zeros_like(keywords["hidden_states"]), None)

    attention.forward = once
    assert "attention was called by layers [0, 1], instead of once by each of 3 in order" in refusal(model)


def test_a_mask_that_was_changed_in_part(load: Load) -> None:
    model = load("llama", "LlamaForCausalLM")
    attention = model.model.layers[0].self_attn
    original = attention.forward

    def forward(**keywords: Any) -> Any:
        mask = keywords["attention_mask"].clone()
        mask[..., -1] = 0
        return original(**{**keywords, "attention_mask": mask})

    attention.forward = forward
    assert refusal(model) == "layer 0 attends with a mask of its own, which paged attention does not have"


RULES: dict[str, Callable[[Any, Any], Any]] = {
    "one more": lambda q, k: (k <= q) & (k > q - 13),
    "one less": lambda q, k: (k <= q) & (k > q - 11),
    "one beyond it": lambda q, k: (k <= q) & ((k > q - 12) | (k == q - 13)),
    "chunks": lambda q, k: (k <= q) & (k // 12 == q // 12),
    "the next too": lambda q, k: (k <= q + 1) & (k > q - 12),
    "the first too": lambda q, k: (k <= q) & ((k > q - 12) | (k == 0)),
    "not itself": lambda q, k: (k < q) & (k > q - 12),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_that_are_nearly_a_window(name: str) -> None:
    rules = MaskRules()
    mask = rules.add(
        q_length=4,
        kv_length=4,
        mask_function=lambda _b, _h, q, k: RULES[name](q, k),
        device=torch.device("cpu"),
        local_size=12,
    )
    with pytest.raises(ModelError, match=r"^sees other tokens than the last 12 up to its own: chunks, or both"):
        rules.window(mask, 512)

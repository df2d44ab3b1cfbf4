"""The probe finds tokens that meet by another way than attention: a state, a convolution, a mean, a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.worker.probing.probe import probe

NEIGHBOURS = (
    "layer 1: what reaches attention depends on more than the token, its position and attention before it: "
    "a state, a convolution, or frequencies of the whole batch"
)


@pytest.mark.parametrize(
    "mix",
    [
        lambda hidden: hidden + 0.1 * hidden.roll(1, dims=1),
        lambda hidden: hidden.cumsum(dim=1),
        lambda hidden: hidden - 0.1 * hidden.mean(dim=1, keepdim=True),
        lambda hidden: hidden + torch.arange(hidden.shape[1]).view(1, -1, 1) * 0.1,
    ],
    ids=["convolution", "state", "mean", "counts tokens"],
)
def test_tokens_that_meet_beside_attention(load: Callable[[str, str], Any], mix: Any) -> None:
    model = load("llama", "LlamaForCausalLM")
    mlp = model.model.layers[0].mlp
    original = mlp.forward
    mlp.forward = lambda hidden: mix(original(hidden))
    with pytest.raises(ModelError) as caught:
        probe(model)
    assert str(caught.value) == NEIGHBOURS


def test_tokens_that_meet_after_the_last_layer(load: Callable[[str, str], Any]) -> None:
    model = load("llama", "LlamaForCausalLM")
    norm = model.model.norm
    original = norm.forward
    norm.forward = lambda hidden: original(hidden).cumsum(dim=1)
    with pytest.raises(ModelError) as caught:
        probe(model)
    assert str(caught.value) == (
        "LlamaForCausalLM: a token's logits depend on its neighbours by another way than attention; "
        "it cannot be run exactly"
    )

"""A model's plan covers it, or it is refused by name: before anything starts where config.json shows it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from enginebay.errors import ModelError
from enginebay.messages import ModelInfo
from enginebay.testing.fakes import fake_model
from enginebay.worker.parallel.plan import make_plan
from enginebay.worker.probing.known import FAMILIES as KNOWN
from enginebay.worker.probing.known_parallel import NO_STAGES, NO_TENSOR_RANKS, splits
from support.repository import ROOT
from support.tiny_models import FAMILIES


def on_meta(family: str, **changes: Any) -> Any:
    import transformers

    from support.tiny_families import COMMON

    architecture, own = FAMILIES[family]
    model_class = getattr(transformers, architecture)
    with torch.device("meta"):
        return model_class(model_class.config_class(**{**COMMON, **own, **changes}))


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if FAMILIES[f][0] in NO_TENSOR_RANKS and f not in ("gemma3n", "codegen")]
)
def test_a_model_without_a_plan_is_refused_when_it_is_loaded_too(family: str) -> None:
    """Whatever the table says. Gemma3n's plan looks whole, and what its MLP does with parts no plan shows."""
    with pytest.raises(ModelError) as caught:
        make_plan(on_meta(family), 0, 2)
    assert str(caught.value) == (
        f"{FAMILIES[family][0]} cannot be split by tensor_parallel_size = 2: its plan in transformers splits none of "
        "its layers; or set it to 1 in [parallel], and use pipeline_parallel_size"
    )


def test_a_plan_that_misses_something_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight between split projections, a sum, a kind, a module of another class, a head that nobody gets."""
    import transformers

    config = transformers.LlamaConfig
    plan = dict(config.base_model_tp_plan)

    def refusal(changes: dict[str, str | None], family: str = "llama", size: int = 2, **options: Any) -> str:
        theirs = {k: v for k, v in {**plan, **changes}.items() if v is not None}
        monkeypatch.setattr(config, "base_model_tp_plan", theirs)
        with pytest.raises(ModelError) as caught:
            make_plan(on_meta(family, **options), 0, size)
        return str(caught.value).partition("tensor_parallel_size = ")[2].partition(": ")[2]

    assert refusal({"layers.*.mlp.up_proj": None}).startswith(
        "its plan splits model.layers.0.mlp, and does not say what becomes of "
        "model.layers.0.mlp.up_proj.weight [96, 48]"
    )
    assert refusal({"layers.*.mlp.down_proj": None}).startswith(
        "its plan splits model.layers.0.mlp, and says of nothing in it that parts are to be summed"
    )
    assert refusal({"layers.*.mlp.down_proj": "sideways"}).startswith(
        "its plan has model.layers.0.mlp.down_proj as 'sideways', which is not known here"
    )
    assert refusal({"layers.*.mlp": "colwise"}).startswith(
        "its plan has model.layers.0.mlp (LlamaMLP) as colwise, which is known of nn.Linear"
    )
    assert refusal({}, size=7).startswith("it has 6 query heads and 2 KV heads: 3 cannot be shared by 4 ranks")


def test_the_table_of_the_tiny_models_is_all_that_is_refused() -> None:
    """Every other family's plan covers it: 64 of them, with their own fields in config.json."""
    for family, (architecture, _) in FAMILIES.items():
        if architecture not in NO_TENSOR_RANKS:
            assert make_plan(on_meta(family), 1, 2).cuts, family


def test_what_config_json_shows_is_refused_before_anything_starts() -> None:
    def info(architecture: str, **config: Any) -> ModelInfo:
        return replace(fake_model(), architecture=architecture, name="m", config=config)

    assert splits(info("LlamaForCausalLM", num_attention_heads=9, num_hidden_layers=30), 2, 2) is None
    assert splits(info("GPT2LMHeadModel"), 1, 2) is None
    assert splits(info("GPT2LMHeadModel"), 2, 1) == (
        "[parallel] tensor_parallel_size is 2, and GPT2LMHeadModel is not split: transformers has no plan for it that "
        "splits its layers (pipeline_parallel_size works)"
    )
    assert splits(info("Gemma3nForCausalLM"), 1, 2) == (
        "[parallel] pipeline_parallel_size is 2, and Gemma3nForCausalLM has no stages: its layers pass on several "
        "streams, and read keys and values of layers before them"
    )
    assert splits(info("LlamaForCausalLM", num_attention_heads=9), 16, 1) == (
        "[parallel] tensor_parallel_size is 16, and m has 9 query heads: lower it"
    )
    assert splits(info("LlamaForCausalLM", num_hidden_layers=3), 1, 4) == (
        "[parallel] pipeline_parallel_size is 4, and m has 3 layers: lower it"
    )


def test_the_page_lists_what_the_table_has() -> None:
    """docs/parallel.md and the tables say the same, and name architectures that are run at all."""
    text = (ROOT / "docs" / "parallel.md").read_text("utf-8")
    tensor, stages = text.split("| Architecture | Has no stages")
    rows = [dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", part, flags=re.MULTILINE)) for part in (tensor, stages)]
    assert rows == [NO_TENSOR_RANKS, NO_STAGES]
    assert {*NO_TENSOR_RANKS, *NO_STAGES} <= KNOWN.keys()

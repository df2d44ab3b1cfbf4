"""A rank's weights are bit for bit the parts of the whole ones, and all ranks' parts together are the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from enginebay.errors import ModelError
from enginebay.messages import ModelInfo
from enginebay.testing.fakes import fake_model
from enginebay.worker.loader import load_causal_lm
from enginebay.worker.probing.known import FAMILIES as KNOWN
from enginebay.worker.probing.known_parallel import NO_STAGES, NO_TENSOR_RANKS, splits
from enginebay_runner_v1.attention import ATTENTION, register
from enginebay_runner_v1.collectives import TensorGroup
from enginebay_runner_v1.cuts import Cut
from enginebay_runner_v1.plan import make_plan
from enginebay_runner_v1.sharding import TensorSplit
from support.repository import ROOT
from support.tiny_models import FAMILIES

Tiny = Callable[[str], Path]


@given(st.data())
def test_what_is_taken_is_what_indexing_takes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dim = -data.draw(st.integers(1, len(shape)))
    bounds = st.tuples(st.integers(0, shape[dim]), st.integers(0, shape[dim])).map(sorted)
    ranges = tuple(range(*data.draw(bounds)) for _ in range(data.draw(st.integers(1, 3))))
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    cut = Cut(dim, ranges)
    index = torch.tensor([i for part in ranges for i in part], dtype=torch.int64)
    assert torch.equal(cut.take(whole), whole.index_select(dim, index))
    assert cut.shape(shape) == cut.take(whole).shape
    assert cut.take(whole).is_contiguous()
    middle = data.draw(st.integers(0, shape[dim]))
    parts = [cut.within(0, middle), cut.within(middle, shape[dim])]
    assert sum(part.length for part in parts) == cut.length


def test_rows_stay_where_they_are_and_columns_are_copied() -> None:
    whole = torch.arange(24).view(4, 6)
    rows, columns = Cut.of(-2, range(1, 3)).take(whole), Cut.of(-1, range(1, 3)).take(whole)
    assert rows.data_ptr() == whole[1].data_ptr()
    assert columns.untyped_storage().nbytes() == 4 * 2 * 8, "nothing of the whole is kept"


def load_part(folder: Path, family: str, rank: int, size: int) -> tuple[Any, TensorSplit]:
    register()
    split = TensorSplit(TensorGroup(None, rank, size))
    model = load_causal_lm(
        folder, architecture=FAMILIES[family][0], dtype="float32", device="cpu", attention=ATTENTION, part=split
    )
    return model, split


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "family", ["llama", "llama-rope-llama3", "mixtral", "cohere", "gpt-neox", "phi3", "granite-swa"]
)
def test_the_parts_are_slices_and_make_the_whole(
    load: Callable[[str, str], Any], tiny: Tiny, family: str, size: int
) -> None:
    whole = dict(load(family, FAMILIES[family][0]).named_parameters())
    seen = {name: torch.zeros_like(weight) for name, weight in whole.items()}
    for rank in range(size):
        model, split = load_part(tiny(family), family, rank, size)
        for name, part in model.named_parameters():
            cut = split.plan.cuts.get(name)
            expected = whole[name] if cut is None else cut.take(whole[name])
            assert torch.equal(part, expected), name
            if cut is None:
                seen[name] += 1
            else:
                for one in cut.ranges:
                    seen[name].narrow(cut.dim, one.start, len(one)).add_(1)
    for name, times in seen.items():
        assert int(times.min()) >= 1, f"{name} is not whole"


def test_experts_that_lie_one_by_one_are_cut_one_by_one(
    load: Callable[[str, str], Any], tiny: Tiny, tmp_path: Path
) -> None:
    """As Mixtral's file has them: no rank holds a whole stack on the way."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((tiny("mixtral") / name).read_bytes())
    state = {}
    for name, weight in load_file(tiny("mixtral") / "model.safetensors").items():
        state[name] = weight.contiguous()
    assert any(".experts.0.w1" in name for name in state), "the file has experts one by one"
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    whole = dict(load("mixtral", "MixtralForCausalLM").named_parameters())
    for rank in range(2):
        model, split = load_part(folder, "mixtral", rank, 2)
        for name, part in model.named_parameters():
            if "experts" in name:
                assert torch.equal(part, split.plan.cuts[name].take(whole[name]))
                assert part.untyped_storage().nbytes() == part.numel() * 4


def test_a_bias_of_a_sum_is_the_first_ranks(tiny: Tiny) -> None:
    has = [load_part(tiny("llama-rope-llama3"), "llama-rope-llama3", rank, 2)[0] for rank in range(2)]
    assert [model.model.layers[0].self_attn.o_proj.bias is None for model in has] == [False, True]
    assert [model.model.layers[0].mlp.down_proj.bias is None for model in has] == [False, True]
    assert has[1].model.layers[0].self_attn.q_proj.bias is not None


def test_a_tied_embedding_is_one_tensor_still(tiny: Tiny) -> None:
    model, _ = load_part(tiny("llama"), "llama", 1, 2)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert tuple(model.lm_head.weight.shape) == (100, 48)


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

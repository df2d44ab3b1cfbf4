"""Writes in place are captured as results: whoever reads what was written to, or a view of it, sees the new numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enginebay.errors import ModelError
from enginebay.graph import run_passes
from enginebay.interfaces import GraphContext
from enginebay.messages import ModelInfo
from enginebay_runner_v2.capture_export import export_step
from enginebay_runner_v2.capture_graph import step_graph
from enginebay_runner_v2.capture_writes import without_writes, writes
from enginebay_runner_v2.passes import built_in_passes
from enginebay_runner_v2.passes.origins import constant_tensor
from support.graph_steps import capture_tiny, rewrite
from support.tiny_models import make_model

VOCAB, WIDTH = 19, 12
INFO = ModelInfo(
    name="m",
    path="/m",
    architecture="Tiny",
    model_type="tiny",
    dtype="float32",
    vocab_size=VOCAB,
    max_model_len=64,
    config={},
)


class Tiny(torch.nn.Module):
    """A model without attention, whose logits ``compute`` makes of the embedded tokens ``[1, T, 12]``."""

    def __init__(self, compute: Callable[[Tiny, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        self.compute = compute
        self.weight = torch.nn.Parameter(torch.randn((VOCAB, WIDTH), generator=generator), requires_grad=False)
        self.register_buffer("shift", torch.randn(WIDTH, generator=generator))
        self.register_buffer("ids", torch.arange(WIDTH), persistent=False)
        self.plain = torch.ones(WIDTH)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        assert not use_cache
        return SimpleNamespace(logits=self.compute(self, torch.nn.functional.embedding(input_ids, self.weight)))


def captured(model: Tiny) -> tuple[torch.fx.GraphModule, dict[str, Any]]:
    exported = without_writes(export_step(model, ()), "Tiny")
    return step_graph(exported, model, (), ())


def differences(compute: Callable[[Tiny, torch.Tensor], torch.Tensor]) -> list[str]:
    """Where the captured step is not, bit for bit, what the model computes; before and after the passes."""
    model = Tiny(compute)
    module, constants = captured(model)
    context = GraphContext(dtype="float32", block_size=4, max_model_len=64, model=INFO, constants=dict(constants))
    found = compare("captured", model, module, context)
    run_passes(module, built_in_passes(), context)
    return found + compare("rewritten", model, module, context)


def compare(what: str, model: Tiny, module: torch.fx.GraphModule, context: GraphContext) -> list[str]:
    found = []
    state = model.state_dict()
    constants = {name: constant_tensor(origin, state) for name, origin in context.constants.items()}
    for tokens in (1, 2, 9):
        ids = torch.arange(tokens) * 7 % VOCAB
        step = {"input_ids": ids, "positions": torch.arange(tokens), "rows": torch.arange(tokens).flip(0)}
        step |= {"query_starts": torch.tensor([0, tokens]), "context_lens": torch.tensor([tokens])}
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        with torch.no_grad():
            expected = model(ids[None], step["positions"][None], use_cache=False).logits[0].flip(0)
            (logits,) = module(*({**step, **constants}[name] for name in names))
        if not torch.equal(logits, expected):
            found.append(f"{what}, {tokens} tokens")
    return found


# ---- ways to write in place


def on_a_fresh_value(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    written = x * 2
    written.clamp_(-0.5, 0.5)
    return written + 1


def on_a_view(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    base.view(1, -1, 3, 4).transpose(1, 2)[:, 1].clamp_(-0.5, 0.5)
    return base + 1


def on_the_base_of_a_view(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    view = base.view(1, -1, 3, 4).transpose(1, 2)
    base.mul_(3)
    return (view + 1).transpose(1, 2).flatten(2)


def on_one_of_two_views(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    first, second = (x * 2).chunk(2, -1)
    whole = torch.cat([first, second], -1)
    first.add_(second).relu_()
    return torch.cat([first, second, whole], -1)


def behind_a_cast_that_casts_nothing(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    base.to(torch.float32).neg_()
    return base


def after_it_was_read(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    before = base + 1
    base.div_(before.sum(-1, keepdim=True))
    return before - base


def with_a_number_of_more_digits(model: Tiny, x: torch.Tensor) -> torch.Tensor:
    shifted = x.to(torch.float16)
    shifted.add_(model.shift)  # in float32, and rounded when it is written
    return shifted.float()


def into_an_empty_tensor(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    made = x.new_empty((*x.shape[:2], 2 * WIDTH))
    made[..., :WIDTH] = x
    made[..., WIDTH:].copy_(-x)
    return made


def of_a_number(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    number = torch.tensor(2.0)
    number.mul_(3)
    return x * number


def as_a_result(_: Tiny, x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, 1, out=torch.empty_like(x))


WAYS = [
    on_a_fresh_value,
    on_a_view,
    on_the_base_of_a_view,
    on_one_of_two_views,
    behind_a_cast_that_casts_nothing,
    after_it_was_read,
    with_a_number_of_more_digits,
    into_an_empty_tensor,
    of_a_number,
    as_a_result,
]


@pytest.mark.parametrize("compute", WAYS)
def test_a_write_in_place_gives_what_it_gives_eagerly(compute: Callable[[Tiny, torch.Tensor], torch.Tensor]) -> None:
    assert differences(compute) == []


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (lambda model, _: model.weight, "weight"),
        (lambda model, _: model.weight.view(-1)[:WIDTH], "weight"),
        (lambda model, _: model.shift[None], "shift"),
        (lambda model, _: model.ids, "ids"),
        (lambda _, positions: positions.transpose(0, 1), "positions"),
    ],
)
def test_what_the_next_step_would_see_is_refused_by_name(written: Callable[..., torch.Tensor], name: str) -> None:
    class Writing(Tiny):
        def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
            written(self, position_ids).mul_(2)
            return super().forward(input_ids, position_ids, use_cache)

    with pytest.raises(ModelError, match=f"^Tiny cannot be captured as a graph: it writes to {name}$"):
        captured(Writing(lambda _, x: x))


def test_a_tensor_that_is_no_buffer_is_refused_in_torchs_words() -> None:
    with pytest.raises(ModelError, match=r"^Tiny cannot be captured as a graph: RuntimeError: Constant .*plain is mut"):
        captured(Tiny(lambda model, x: x + model.plain.mul_(2)))


def test_a_step_without_writes_is_left_as_it_is() -> None:
    exported = export_step(Tiny(lambda model, x: x + model.shift), ())
    assert without_writes(exported, "Tiny") is exported


# ---- a whole model


def test_passes_recognise_what_is_clamped(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "olmo", num_hidden_layers=1)
    step, context = capture_tiny(folder)
    rewrite(step, context)
    targets = [str(node.target) for node in step.graph_module.graph.nodes if node.op == "call_function"]
    assert targets.count("aten.clamp.default") == 3
    assert "enginebay.rotary_attention.default" in targets
    assert not any(writes(node.target) for node in step.graph_module.graph.nodes)


# ---- chains of views and writes


@dataclass(frozen=True)
class Value:
    """A tensor, and which of its dimensions is that of the tokens."""

    tensor: torch.Tensor
    tokens: int

    def others(self) -> list[int]:
        return [dim for dim in range(self.tensor.dim()) if dim != self.tokens]


def split(value: Value, pick: int) -> Value:
    dim = value.others()[pick % len(value.others())]
    size = value.tensor.shape[dim]
    if size % 2:
        return value
    return Value(value.tensor.unflatten(dim, (2, size // 2)), value.tokens + (dim < value.tokens))


def turn(value: Value, pick: int) -> Value:
    first, second = pick % value.tensor.dim(), pick // 4 % value.tensor.dim()
    tokens = {first: second, second: first}.get(value.tokens, value.tokens)
    return Value(value.tensor.transpose(first, second), tokens)


def chunk(value: Value, pick: int) -> Value:
    dim = value.others()[pick % len(value.others())]
    parts = value.tensor.chunk(2, dim)
    return Value(parts[pick // 4 % len(parts)], value.tokens)


def every_other(value: Value, pick: int) -> Value:
    dim = value.others()[pick % len(value.others())]
    at: list[slice] = [slice(None)] * value.tensor.dim()
    at[dim] = slice(None, None, 2)
    return Value(value.tensor[tuple(at)], value.tokens)


def same(value: Value, pick: int) -> Value:
    whole = value.tensor[None] if pick % 2 else value.tensor.to(torch.float32)
    return Value(whole, value.tokens + pick % 2)


def fresh(value: Value, pick: int) -> Value:
    return Value(value.tensor * (pick + 1), value.tokens)


MAKE = (split, turn, chunk, every_other, same, fresh)
WRITE: tuple[Callable[[torch.Tensor, int], Any], ...] = (
    lambda x, pick: x.clamp_(-0.5 * pick, 0.5),
    lambda x, pick: x.mul_(pick + 2),
    lambda x, pick: x.add_(pick + 1),
    lambda x, pick: x.sub_(x * pick),
    lambda x, pick: x.div_(3),
    lambda x, pick: x.relu_(),
    lambda x, pick: x.neg_(),
    lambda x, pick: x.masked_fill_(x > pick, 0.25),
    lambda x, pick: x.copy_(x.flip(-1)),
    lambda x, pick: x.zero_() if pick == 1 else x.abs_(),
)
"""All of them round correctly: every layout of a tensor gives the same bits."""
PICKS = st.integers(0, 15)
STEPS = st.one_of(
    st.tuples(st.sampled_from(range(len(MAKE))), PICKS, PICKS), st.tuples(st.sampled_from(range(-10, 0)), PICKS, PICKS)
)


@settings(max_examples=12)
@given(st.lists(STEPS, min_size=2, max_size=10))
@example([(-10, 0, 12), (0, 15, 7), *[(0, 0, 0)] * 4, (-10, 0, 0), (1, 7, 7)])  # a reshape that copies
@example([(0, 0, 1), (1, 1, 9), (-10, 0, 1), (2, 2, 1), (-9, 3, 0), (-4, 1, 0), (-8, 0, 1)])
def test_chains_of_views_and_writes_give_what_they_give_eagerly(steps: list[tuple[int, int, int]]) -> None:
    def compute(_: Tiny, x: torch.Tensor) -> torch.Tensor:
        values = [Value(x * 2, 1)]
        for what, of, pick in steps:
            value = values[of % len(values)]
            if what < 0:
                WRITE[what](value.tensor, pick % 3)
            elif value.tensor.dim() < 5:
                values.append(MAKE[what](value, pick))
        rows = [value.tensor.movedim(value.tokens, 0).flatten(1) for value in values]
        return torch.cat(rows, 1)[None]

    assert differences(compute) == []

"""``batch_invariant`` with windows, caps, sinks and experts; and what the self-tests notice when it is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from enginebay.errors import CapabilityError
from enginebay.testing import start_runner
from enginebay_runner_v1 import invariant, invariant_products, invariant_rules, runner
from enginebay_runner_v1.invariant_products import elementwise, elementwise_is_safe, find_product, product, relaid
from enginebay_runner_v1.invariant_rules import NoRule, Rule
from support.invariance import Walk
from support.tiny_models import VOCAB


def prompts() -> list[list[int]]:
    """Shorter and longer than a tile, and than the windows."""
    random = Random(3)
    return [[random.randrange(VOCAB) for _ in range(length)] for length in (1, 15, 40, 62, 90)]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("gemma2", "float32"),
        ("gpt-oss", "bfloat16"),
        ("gpt2", "bfloat16"),
        ("mistral-window", "float32"),
        ("mixtral", "float32"),
        ("qwen2-mixed-window", "bfloat16"),
    ],
)
def test_bits_do_not_depend_on_the_batch(tiny: Callable[[str], Path], family: str, dtype: str) -> None:
    with start_runner("v1", tiny(family), dtype=dtype, num_blocks=96, batch_invariant=True) as started:
        walk = Walk(started.runner, prompts(), steps=7)
        assert walk.num_blocks <= 96
        seen = walk.resume(walk.points(35))
    assert seen.points == 35
    assert (seen.equal, seen.flips) == (35, 0), seen.first


def test_in_force_says_how(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("llama"), batch_invariant=True) as started:
        told = started.runner.in_force()
    assert told["attention"] == "paged_tiles"
    assert told["batch_invariant"].startswith("float32: rows padded ")


def test_a_product_without_a_rule_is_refused_by_name(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_place(way: str, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rows @ weight.t() + torch.arange(len(rows)).unsqueeze(1)

    monkeypatch.setattr(invariant_products, "_run", by_place)
    with pytest.raises(CapabilityError) as refused, start_runner("v1", tiny("llama"), batch_invariant=True):
        pass
    assert str(refused.value) == (
        "[engine] batch_invariant cannot be kept on this machine: a product with a weight of 48 x 48 in float32: "
        "2 rows give other bits from place to place (threads: 1). "
        "Try another [worker] threads or [model] dtype, or turn the mode off."
    )


def test_the_test_of_the_whole_notices_a_rule_that_is_not_kept(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products that look at how many rows they are given, behind rules that were found before."""

    def by_size(rule: Rule, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return product(rule, rows, weight) * (1 + len(rows) * 1e-6)

    monkeypatch.setattr(invariant, "product", by_size)
    with (
        pytest.raises(CapabilityError, match=r"^\[engine\] batch_invariant cannot be kept: a batch changes logits by "),
        start_runner("v1", tiny("llama"), batch_invariant=True),
    ):
        pass


def test_the_test_of_the_whole_notices_attention_that_reads_in_other_tiles(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner's ordinary attention in place of the one in tiles: on some machines its bits happen to be equal, so
    its scale depends on the number of queries here."""
    from enginebay_runner_v1.attention import LayerBinding
    from enginebay_runner_v1.scores import ScoreRule

    attend = LayerBinding._attend_decode

    def other(self: Any, part: Any, queries: torch.Tensor, rule: ScoreRule) -> torch.Tensor:
        return attend(self, part, queries, rule) * (1 + 1e-6)

    monkeypatch.setattr(runner.InvariantBinding, "_attend_decode", other)
    with (
        pytest.raises(CapabilityError, match="decoding in a batch changes logits"),
        start_runner("v1", tiny("llama"), batch_invariant=True),
    ):
        pass


def test_a_model_that_calls_what_is_not_known_is_refused(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: plain(self, torch.einsum("bti->bti", x)))
    with (
        pytest.raises(
            CapabilityError,
            match=r"^\[engine\] batch_invariant: LlamaMLP calls einsum, whose bits may depend on the batch: turn the "
            r"mode off, or choose another model\.$",
        ),
        start_runner("v1", tiny("llama"), batch_invariant=True),
    ):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_torch_whatever_the_pieces(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(24, 40).to(dtype)
    rule = find_product([weight], movable=True)
    for rule_ in (rule, Rule("rows", (4, 8)), Rule("columns", (1, 2)), Rule("packed", (16,)), Rule("relaid", (2, 64))):
        for count in (1, 3, 17, 70):
            rows = torch.randn(count, 40).to(dtype)
            used = relaid(weight) if rule_.way == "relaid" else weight
            torch.testing.assert_close(product(rule_, rows, used), rows @ weight.t())


def test_a_found_rule_keeps_what_it_promises() -> None:
    """Rows of a found rule's product are equal bits alone and among others, at any place."""
    torch.manual_seed(1)
    weight = torch.randn(136, 200)
    rule = find_product([weight], movable=False)
    rows = torch.randn(90, 200)
    whole = product(rule, rows, weight)
    for begin, end in ((0, 1), (89, 90), (3, 8), (40, 90), (11, 44)):
        assert torch.equal(product(rule, rows[begin:end], weight), whole[begin:end])


def test_curves_are_computed_by_whole_vectors_at_every_place() -> None:
    torch.manual_seed(2)
    numbers = torch.randn(3, 50_001) * 4
    whole = elementwise(silu, numbers)
    torch.testing.assert_close(whole, silu(numbers))
    for begin, end in ((0, 1), (7, 8), (5, 36), (60, 130)):
        assert torch.equal(elementwise(silu, numbers[:, begin:end].contiguous()), whole[:, begin:end])
    assert elementwise_is_safe(lambda part: elementwise(silu, part), numbers)
    assert not elementwise_is_safe(lambda part: silu(part) + len(part) % 64, numbers)


def test_sizes_are_tried_on_a_million_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    look = invariant_products._bytes

    def counting(out: torch.Tensor) -> list[bytes]:
        compared.append(out.numel())
        return look(out)

    monkeypatch.setattr(invariant_products, "_bytes", counting)
    find_product([torch.ones(16, 8)], movable=False)
    assert sum(compared) >= 1_000_000
    assert issubclass(NoRule, Exception)
    assert invariant_rules.SIZES[0] == 1

"""Each native operator computes what its reference does, row by row, and refuses what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay_runner_v2 import references
from support.kernel_kinds import KINDS, ops, product_kind, tolerance

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=40)
@given(seed=SEEDS, rows=st.integers(0, 40), width=st.integers(1, 700), style=st.integers(0, 2), dtype=DTYPES)
def test_norms(seed: int, rows: int, width: int, style: int, dtype: torch.dtype) -> None:
    x, residual = normal(seed, rows, width, dtype=dtype), normal(seed + 1, rows, width, dtype=dtype)
    weight = normal(seed + 2, width, dtype=dtype)
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-3}
    torch.testing.assert_close(
        ops.rms_norm(x, weight, 1e-5, style), references.rms_norm(x, weight, 1e-5, style), **close
    )
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5, style)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, references.rms_norm(total, weight, 1e-5, style), **close)


@settings(max_examples=40)
@given(seed=SEEDS, rows=st.integers(0, 40), width=st.integers(0, 700), kind=st.integers(0, 2), dtype=DTYPES)
def test_gates(seed: int, rows: int, width: int, kind: int, dtype: torch.dtype) -> None:
    both = normal(seed, rows, 2 * width, dtype=dtype) * 8
    # torch's own gelu loses the digits of 1 + erf(x) where that is near 0: the floor is its error, not ours
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-5}
    torch.testing.assert_close(ops.gated(both, kind), references.gated(both, kind), **close)


SPECIAL = [
    float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, -1e-40, 1e-38, 1e-20, 20.0, -20.0, 88.0, -88.0, 95.0,
    -95.0, -104.0, 200.0, -200.0, 3e38, -3e38,
]  # fmt: skip
"""NaN, infinities, zeros, numbers below the normal ones, and those on either side of where e^x is 0 or infinite."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", range(3))
def test_gates_of_numbers_at_the_ends_of_their_range(kind: int, dtype: torch.dtype) -> None:
    gate = torch.tensor(SPECIAL, dtype=dtype).repeat_interleave(len(SPECIAL)).repeat(3, 1)
    up = torch.tensor(SPECIAL, dtype=dtype).repeat(len(SPECIAL)).repeat(3, 1)
    both = torch.cat([gate, up], dim=1)
    close = {"rtol": 1e-4, "atol": 1e-30} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-30}
    got, expected = ops.gated(both, kind), references.gated(both, kind)
    if kind:  # torch's own gelu gives 0 or NaN where the exact one is tiny, and we do where x³ overflows
        usual = (gate.float().abs() <= 20) & up.isfinite()
        got, expected = got[usual], expected[usual]
        close["atol"] = 1e-5 * 20
    torch.testing.assert_close(got, expected, equal_nan=True, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("style", range(3))
@pytest.mark.parametrize("width", [1, 31, 64, 65, 96, 127, 200])
def test_norms_of_numbers_at_the_ends_of_their_range(width: int, style: int, dtype: torch.dtype) -> None:
    x = torch.stack([normal(at, width, dtype=dtype) for at in range(len(SPECIAL))])
    x[torch.arange(len(SPECIAL)), torch.arange(len(SPECIAL)) % width] = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.cat([x, torch.zeros(1, width, dtype=dtype), torch.full((1, width), 1e-40, dtype=dtype)])
    weight = normal(99, width, dtype=dtype)
    flushed = torch.finfo(dtype).tiny if dtype == torch.bfloat16 else 0.0  # what is below is 0 on some processors
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-3}
    for residual in (torch.zeros_like(x), x.flip(0)):
        normed, total = ops.add_rms_norm(x, residual, weight, 1e-5, style)
        torch.testing.assert_close(total, x + residual, rtol=0, atol=flushed, equal_nan=True)
        expected = references.rms_norm(total, weight, 1e-5, style)
        torch.testing.assert_close(normed, expected, equal_nan=True, **close)
        assert torch.equal(ops.rms_norm(total, weight, 1e-5, style).view(torch.uint8), normed.view(torch.uint8))


@settings(max_examples=40)
@given(seed=SEEDS, rows=st.integers(0, 4), width=st.integers(1, 9000), dtype=DTYPES, nan=st.booleans())
def test_greedy_takes_the_lowest_of_the_largest(
    seed: int, rows: int, width: int, dtype: torch.dtype, nan: bool
) -> None:
    logits = normal(seed, rows, width, dtype=dtype).round()
    if nan and rows:
        logits[0, seed % width] = float("nan")
    if rows > 1:
        logits[1] = float("-inf")
    ids, values = ops.greedy(logits)
    expected, largest = references.greedy(logits)
    assert torch.equal(ids, expected)
    torch.testing.assert_close(values, largest, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    rows=st.integers(0, 5) | st.sampled_from([17, 40, 300]),
    inputs=st.sampled_from([1, 33, 64]),
    outputs=st.sampled_from([1, 31, 32, 33, 200, 2048, 4500]),
    dtype=DTYPES,
    kind=st.sampled_from(KINDS),
    how=st.sampled_from(["packed", "plain", "int8"]),
    nan=st.booleans(),
)
def test_a_product_that_tells_the_largest_is_both_operators(
    seed: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype, kind: int, how: str, nan: bool
) -> None:
    """To the bit, with equal logits in most rows, whichever thread comes first, and where one row is at fault."""
    x, weight = normal(seed, rows, inputs, dtype=dtype).round(), normal(seed + 1, outputs, inputs, dtype=dtype).round()
    bias = normal(seed + 2, outputs, dtype=dtype).round() if seed % 2 else None
    if nan and rows:
        x[seed % rows] = float("nan")
    if how != "plain":
        weight = ops.pack_linear(weight) if how == "packed" else ops.pack_linear_int8(weight)
    torch.set_num_threads(2)
    with product_kind(kind):
        logits, ids, values = ops.linear_greedy(x, weight, bias, outputs)
        torch.set_num_threads(1)
        expected = ops.linear(x, weight, bias, outputs, float_out=True)
    assert torch.equal(logits.view(torch.int32), expected.view(torch.int32))
    best, largest = references.greedy(logits)
    assert torch.equal(ids, best)
    torch.testing.assert_close(values, largest, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=40)
@given(
    seed=SEEDS, rows=st.integers(0, 70), inputs=st.integers(1, 300), outputs=st.integers(1, 200), dtype=DTYPES,
    biased=st.booleans(), float_out=st.booleans(), kind=st.sampled_from(KINDS),
)  # fmt: skip
def test_packed_linear(
    seed: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype, biased: bool, float_out: bool, kind: int
) -> None:
    x, weight = normal(seed, rows, inputs, dtype=dtype), normal(seed + 1, outputs, inputs, dtype=dtype)
    bias = normal(seed + 2, outputs, dtype=dtype) if biased else None
    packed = ops.pack_linear(weight)
    assert torch.equal(packed, references.pack_linear(weight))
    with product_kind(kind):
        got = ops.linear(x, packed, bias, outputs, float_out=float_out)
    expected = references.linear(x, weight, bias, outputs, float_out=True)
    assert got.dtype == (torch.float32 if float_out else dtype)
    close = tolerance(torch.float32 if float_out else dtype)
    torch.testing.assert_close(got.float(), expected, **(close | {"atol": close["atol"] * 3}))
    assert torch.equal(ops.linear(x, weight, bias, outputs), torch.nn.functional.linear(x, weight, bias))


@settings(max_examples=40)
@given(
    seed=SEEDS, rows=st.integers(0, 100), inputs=st.integers(1, 200),
    width=st.one_of(st.integers(1, 100), st.sampled_from([32, 64, 96])), dtype=DTYPES,
    biased=st.booleans(), activation=st.integers(0, 2), kind=st.sampled_from(KINDS),
)  # fmt: skip
def test_a_product_with_its_gate_is_both_bit_for_bit(
    seed: int, rows: int, inputs: int, width: int, dtype: torch.dtype, biased: bool, activation: int, kind: int
) -> None:
    x, weight = normal(seed, rows, inputs, dtype=dtype), normal(seed + 1, 2 * width, inputs, dtype=dtype)
    bias = normal(seed + 2, 2 * width, dtype=dtype) if biased else None
    if rows:
        x[seed % rows, 0] = float("nan")
        x[seed * 7 % rows, inputs - 1] = float("inf")
    packed = ops.pack_linear(weight)
    with product_kind(kind):
        got = ops.gated_linear(x, packed, bias, 2 * width, activation)
        expected = ops.gated(ops.linear(x, packed, bias, 2 * width), activation)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    plain = ops.gated_linear(x, weight, bias, 2 * width, activation)
    torch.testing.assert_close(
        plain, ops.gated(ops.linear(x, weight, bias, 2 * width), activation), rtol=0, atol=0, equal_nan=True
    )
    reference = references.gated_linear(x, weight, bias, 2 * width, activation)
    torch.testing.assert_close(plain.shape, reference.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_that_are_taken_in_several_parts(kind: int, threads: int) -> None:
    x, weight = normal(0, 350, 4096, dtype=torch.bfloat16), normal(1, 192, 4096, dtype=torch.bfloat16)
    packed = ops.pack_linear(weight)
    torch.set_num_threads(threads)
    with product_kind(kind):
        whole, gated = ops.linear(x, packed, None, 192), ops.gated_linear(x, packed, None, 192, 0)
        for part in (slice(0, 1), slice(150, 200), slice(300, 350)):
            assert torch.equal(ops.linear(x[part], packed, None, 192), whole[part])
            assert torch.equal(ops.gated_linear(x[part], packed, None, 192, 0), gated[part])
    torch.testing.assert_close(whole, references.linear(x, weight, None, 192), rtol=2e-2, atol=2)


@settings(max_examples=20)
@given(seed=SEEDS, count=st.integers(0, 60), inputs=st.integers(1, 100), outputs=st.integers(1, 100), dtype=DTYPES)
def test_rows_of_a_packed_weight(seed: int, count: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight = normal(seed, outputs, inputs, dtype=dtype)
    packed = ops.pack_linear(weight)
    ids = torch.randint(0, outputs, (count,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(ops.packed_rows(packed, ids, outputs, inputs), weight[ids])
    assert torch.equal(references.packed_rows(packed, ids, outputs, inputs), weight[ids])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_rows_beside_it_or_on_threads(dtype: torch.dtype, kind: int) -> None:
    x, weight = normal(0, 300, 576, dtype=dtype), normal(1, 960, 576, dtype=dtype)
    packed = ops.pack_linear(weight)
    norm_weight, half = normal(2, 576, dtype=dtype), 288
    with product_kind(kind):
        torch.set_num_threads(3)
        whole = ops.linear(x, packed, None, 960), ops.rms_norm(x, norm_weight, 1e-5, 0), ops.gated(x, 0)
        torch.set_num_threads(1)
        for count in (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 50, 64, 299):
            for first in (0, 300 - count):
                part = slice(first, first + count)
                assert torch.equal(ops.linear(x[part], packed, None, 960), whole[0][part]), count
                assert torch.equal(ops.rms_norm(x[part], norm_weight, 1e-5, 0), whole[1][part])
                assert torch.equal(ops.gated(x[part], 0), whole[2][part])
    assert whole[2].shape == (300, half)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_finite_stays_alone(kind: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, packed = normal(0, 40, 64, dtype=dtype), ops.pack_linear(normal(1, 96, 64, dtype=dtype))
        clean = ops.linear(x, packed, None, 96)
        with product_kind(kind):
            clean = ops.linear(x, packed, None, 96)
            x[17, 3], x[18, 5] = float("nan"), float("inf")
            spoilt = ops.linear(x, packed, None, 96)
        assert spoilt[17].isnan().all()
        assert not spoilt[18].isfinite().any()
        others = [row for row in range(40) if row not in (17, 18)]
        assert torch.equal(spoilt[others], clean[others])
        assert ops.gated(x, 0).isfinite().sum() >= 38 * 32
        assert ops.rms_norm(x, x[0], 1e-5, 0)[17].isnan().all()


def bad_calls() -> dict[str, tuple[Any, tuple[Any, ...], str]]:
    x = torch.randn(3, 8)
    return {
        "norm": (ops.rms_norm, (x, torch.ones(7), 1e-5, 0), "a norm's weight has 7 elements"),
        "norm's dtype": (ops.rms_norm, (x, torch.ones(8).bfloat16(), 1e-5, 0), "a norm of Float got a weight"),
        "style": (ops.rms_norm, (x, torch.ones(8), 1e-5, 3), "style must be 0, 1 or 2, and is 3"),
        "residual": (ops.add_rms_norm, (x, x[:2], torch.ones(8), 1e-5, 0), "and the residual"),
        "odd": (ops.gated, (torch.ones(2, 3), 0), "need an even last dimension"),
        "activation": (ops.gated, (x, 4), "activation must be 0, 1 or 2, and is 4"),
        "gated product": (
            ops.gated_linear,
            (x, torch.zeros(256), None, 7, 0),
            "need an even last dimension, and this is 7",
        ),
        "gated product's kind": (ops.gated_linear, (x, torch.zeros(256), None, 8, 3), "activation must be 0, 1 or 2"),
        "gated product's weight": (
            ops.gated_linear,
            (x.bfloat16(), torch.zeros(12).bfloat16(), None, 8, 0),
            "12 elements are no packed weight of 8 outputs and 8",
        ),
        "packed": (ops.linear, (x, torch.zeros(12), None, 8), "12 elements are no packed weight of 8 outputs and 8"),
        "outputs": (ops.linear, (x, torch.zeros(4, 8), None, 8), "the weight has 4 outputs, and out_features is 8"),
        "dtypes": (ops.linear, (x, torch.zeros(4, 8).bfloat16(), None, 4), "linear of Float got a weight of BFloat16"),
        "bias": (ops.linear, (x, torch.zeros(256), torch.ones(3), 8), r"the bias is not \[8\]"),
        "half": (ops.pack_linear, (torch.zeros(4, 8).half(),), "take float32 and bfloat16, and got Half"),
        "empty": (ops.greedy, (torch.zeros(2, 0),), "greedy takes"),
        "packed rows": (ops.packed_rows, (torch.zeros(256), torch.tensor([8]), 8, 8), "row 8 is not one of 8"),
        "rows": (ops.select_rows, (x, torch.tensor([3])), "out of range"),
    }


@pytest.mark.parametrize("case", bad_calls())
def test_what_does_not_fit_raises(case: str) -> None:
    operator, args, message = bad_calls()[case]
    with pytest.raises((RuntimeError, ValueError, IndexError, NotImplementedError), match=message):
        operator(*args)

"""``linear`` with weights in int8 is what its reference says, bit for bit, on each kind of product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enginebay_runner_v2 import references
from enginebay_runner_v2.int8_reference import linear_int8, pack_linear_int8, unpack_linear_int8
from support.kernel_kinds import KINDS, ops, product_kind

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, but that one NaN is as good as another."""
    numbers = torch.equal(one.nan_to_num(0.0), other.nan_to_num(0.0))
    return one.dtype == other.dtype and torch.equal(one.isnan(), other.isnan()) and numbers


@settings(max_examples=25)
@given(
    seed=SEEDS, rows=st.integers(0, 70), inputs=st.integers(1, 300), outputs=st.integers(1, 200), dtype=DTYPES,
    biased=st.booleans(), float_out=st.booleans(),
)  # fmt: skip
@example(seed=1, rows=300, inputs=576, outputs=1000, dtype=torch.bfloat16, biased=True, float_out=False)
@example(seed=2, rows=3, inputs=5000, outputs=40, dtype=torch.float32, biased=True, float_out=True)
def test_every_kind_gives_the_bits_of_the_reference(
    seed: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype, biased: bool, float_out: bool
) -> None:
    x, weight = normal(seed, rows, inputs, dtype=dtype), normal(seed + 1, outputs, inputs, dtype=dtype)
    bias = normal(seed + 2, outputs, dtype=dtype) if biased else None
    packed = ops.pack_linear_int8(weight)
    assert torch.equal(packed, pack_linear_int8(weight))
    expected = references.linear(x, packed, bias, outputs, float_out=float_out)
    for kind in KINDS:
        with product_kind(kind):
            assert same(ops.linear(x, packed, bias, outputs, float_out=float_out), expected), kind


@settings(max_examples=15)
@given(seed=SEEDS, rows=st.integers(1, 80), inputs=st.integers(1, 200), outputs=st.integers(1, 100), dtype=DTYPES)
def test_a_row_is_the_same_whatever_is_beside_it(
    seed: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    x, packed = normal(seed, rows, inputs, dtype=dtype), ops.pack_linear_int8(normal(seed + 1, outputs, inputs))
    for kind in KINDS:
        with product_kind(kind):
            together = ops.linear(x, packed, None, outputs)
            one = seed % rows
            assert torch.equal(together[one : one + 1], ops.linear(x[one : one + 1], packed, None, outputs))
            others = torch.full_like(x, 1e9)
            others[one] = x[one]
            assert torch.equal(together[one], ops.linear(others, packed, None, outputs)[one])


def test_the_product_is_exact_at_its_largest() -> None:
    inputs, outputs = 2**17, 2  # all sums are as far from zero as an int32 of these can be
    x, weight = torch.ones(1, inputs), torch.ones(outputs, inputs)
    weight[1] = -1
    packed = ops.pack_linear_int8(weight)
    for kind in KINDS:
        with product_kind(kind):
            got = ops.linear(x, packed, None, outputs)
        assert torch.equal(got, linear_int8(x, packed, None, outputs, float_out=True)), kind
        torch.testing.assert_close(got, torch.tensor([[float(inputs), -float(inputs)]]))


@settings(max_examples=15)
@given(seed=SEEDS, inputs=st.integers(1, 300), outputs=st.integers(1, 100), dtype=DTYPES)
def test_each_weight_is_off_by_half_a_step_of_its_output_at_most(
    seed: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    weight = normal(seed, outputs, inputs, dtype=dtype) * normal(seed + 1, outputs, 1).exp()
    whole, scales = unpack_linear_int8(ops.pack_linear_int8(weight), outputs, inputs)
    wide = weight.float()
    torch.testing.assert_close(scales, wide.abs().amax(1) / 127)
    assert torch.all((whole.float() * scales[:, None] - wide).abs() <= scales[:, None] * 0.5001)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_in_its_row_and_its_output(dtype: torch.dtype) -> None:
    x, weight = normal(1, 40, 70, dtype=dtype), normal(2, 50, 70, dtype=dtype)
    x[3, 69], x[5, 0], x[7], x[9], weight[11, 4], weight[13] = float("nan"), -float("inf"), 0, 1e-35, float("inf"), 0
    packed = ops.pack_linear_int8(weight)
    assert torch.equal(packed, pack_linear_int8(weight))
    expected = linear_int8(x, packed, None, 50, float_out=False)
    nan = expected.isnan()
    assert nan[[3, 5]].all()
    assert nan[:, 11].all()
    assert nan.sum() == 2 * 50 + 40 - 2
    assert (expected[[7, 9]][:, :11] == 0).all()
    assert (expected[~nan.all(1)][:, 13] == 0).all()
    for kind in KINDS:
        with product_kind(kind):
            assert same(ops.linear(x, packed, None, 50), expected), kind


@pytest.mark.parametrize("side", [ops, references])
def test_what_does_not_fit_is_refused(side: object) -> None:
    linear, pack, rows = (getattr(side, name) for name in ("linear", "pack_linear_int8", "packed_rows"))
    packed = pack(torch.ones(33, 65))
    with pytest.raises(ValueError, match="8704 elements are no packed weight of 33 outputs and 129 inputs in int8"):
        linear(torch.ones(1, 129), packed, None, 33)
    with pytest.raises(ValueError, match="131073 inputs are too many for weights in int8: at most 131072"):
        pack(torch.ones(1, 2**17 + 1))
    with pytest.raises((TypeError, NotImplementedError), match=r"(float32 and bfloat16|bfloat16 or float32)"):
        rows(packed, torch.tensor([0]), 33, 65)


def test_a_tracer_is_told_the_shapes() -> None:
    for outputs, inputs in ((33, 65), (1, 1), (64, 64)):
        weight = torch.empty(outputs, inputs, device="meta")
        packed = ops.pack_linear_int8(weight)
        assert (packed.shape, packed.dtype) == (ops.pack_linear_int8(torch.ones(outputs, inputs)).shape, torch.int8)
        x = torch.empty(2, inputs, device="meta", dtype=torch.bfloat16)
        assert ops.linear(x, packed, None, outputs, float_out=True).dtype == torch.float32

"""Attention over a cache in int8 is like its reference; each kind of product, batch and cut gives the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from enginebay_runner_v2 import attention_reference, int8_pages
from support.attention_cases import Case, Fixed, cases, make
from support.int8_cases import in_int8
from support.kernel_kinds import KINDS, ops, product_kind, tolerance

DTYPES = (torch.float32, torch.bfloat16)
NEAR = {torch.float32: {"rtol": 1e-5, "atol": 5e-4}, torch.bfloat16: tolerance(torch.bfloat16)}
"""Kernels round weights to one part in 65535 of the largest; references do not."""


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, but that one NaN is as good as another."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(0.0), other.nan_to_num(0.0))


def by_kind(case: Case) -> tuple[Tensor, list[Any]]:
    """What the operator gives, the same on every kind of product, and its arguments after that."""
    told: Tensor | None = None
    for kind in KINDS:
        with product_kind(kind):
            got = ops.paged_attention(*(args := case.args()))
        assert told is None or same(got, told), kind
        told = got
    assert told is not None
    return told, args


@settings(max_examples=40)
@given(case=st.sampled_from(DTYPES).flatmap(cases))
def test_like_the_reference_and_the_same_on_every_kind(case: Case) -> None:
    case = in_int8(case)
    got, ours = by_kind(case)
    expected = attention_reference.paged_attention(*(theirs := case.args()))
    torch.testing.assert_close(got, expected, **NEAR[case.q.dtype])
    assert torch.equal(ours[3], theirs[3])
    assert torch.equal(ours[4], theirs[4])


@settings(max_examples=15)
@given(case=st.sampled_from(DTYPES).flatmap(cases), turned=st.sampled_from([1.0, 0.5]))
def test_rotary_is_turning_and_then_attention(case: Case, turned: float) -> None:
    case = in_int8(replace(case, v=case.k.neg(), value_cache=case.key_cache.neg()))
    tokens, heads, size = case.q.shape
    kv_heads, dims = case.k.shape[1], int(size * turned)
    table, positions = torch.randn(700, dims), torch.randint(0, 700, (tokens,))
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    got = ops.rotary_attention(qkv, positions, table, *(ours := case.args())[3:9], heads, kv_heads, *ours[9:])
    theirs = case.args()
    expected = attention_reference.rotary_attention(qkv, positions, table, *theirs[3:9], heads, kv_heads, *theirs[9:])
    assert torch.equal(ours[4], theirs[4])
    apart = ours[3].int() - theirs[3].int()  # a key that was turned may be rounded to the neighbour
    assert (apart != 0).float().mean() < 0.05
    near = NEAR[case.q.dtype]
    torch.testing.assert_close(got, expected, **(near | {"atol": 0.05}))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000), block=st.sampled_from([1, 3, 8, 16, 48]), heads=st.integers(1, 3),
    width=st.sampled_from([1, 16, 48, 64, 80]), keys=st.booleans(), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_each_number_is_off_by_half_a_step_of_its_token_at_most(
    seed: int, block: int, heads: int, width: int, keys: bool, dtype: torch.dtype
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    new = (
        torch.randn(4 * block, heads, width, generator=drawn) * torch.randn(4 * block, heads, 1, generator=drawn).exp()
    )
    new = new.to(dtype)
    stored = -(-width // (32 if keys else 16)) * (32 if keys else 16)
    cache = torch.full((4, block, heads, stored + 4), 99, dtype=torch.int8)
    order = torch.randperm(4 * block, generator=drawn)
    int8_pages.put(cache, order, new, keys=keys)
    kept = int8_pages.get(cache, torch.arange(4), width, keys=keys)[order]
    step = new.float().abs().amax(-1, keepdim=True) / 127
    assert torch.all((kept - new.float()).abs() <= step * 0.5001)
    moved = torch.empty_like(cache)
    moved[[2, 0, 3, 1]] = cache  # a copy of a block's memory is a copy of its tokens, with their scales
    assert torch.equal(int8_pages.get(moved, torch.tensor([2, 0, 3, 1]), width, keys=keys)[order], kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "block"), [(0, 16), (100, 16), (100, 3), (0, 32), (40, 48)])
def test_cut_prompts_batches_and_threads_change_no_bit(dtype: torch.dtype, window: int, block: int) -> None:
    torch.manual_seed(0)
    lengths = [700, 130, 61]
    case = in_int8(make(block, 3, 3, 64, 64, lengths, lengths, dtype, Fixed(window, 0.0, None)))
    torch.set_num_threads(3)
    whole = ops.paged_attention(*case.args())
    args = case.args()
    starts = case.query_starts.tolist()
    out = torch.empty_like(whole)
    for row, length in enumerate(lengths):  # one at a time, in pieces of all sizes
        done, sizes = 0, [1, 2, 64, 100, 300, 1, 1]
        while done < length:
            count = min(length - done, sizes.pop(0) if sizes else 37)
            torch.set_num_threads(1 + count % 2 * 3)
            part = slice(starts[row] + done, starts[row] + done + count)
            done += count
            out[part] = ops.paged_attention(
                case.q[part], case.k[part], case.v[part], args[3], args[4], case.slots[part],
                case.block_tables[row : row + 1], torch.tensor([0, count], dtype=torch.int32),
                torch.tensor([done], dtype=torch.int32), *args[9:],
            )  # fmt: skip
    assert torch.equal(out, whole)


@pytest.mark.parametrize("block", [16, 48, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_stays_in_its_request_and_stale_bytes_change_nothing(
    dtype: torch.dtype, block: int
) -> None:
    torch.manual_seed(1)
    case = make(block, 2, 3, 64, 48, [33, 70, 5], [3, 20, 5], dtype, Fixed(0, 0.0, None))
    clean, _ = by_kind(in_int8(case))
    case.q[2], case.k[5, 0, 7], case.v[7, 1, 3] = float("nan"), float("inf"), float("nan")
    spoilt = in_int8(case)
    owned = torch.zeros(spoilt.key_cache.shape[0] * block, dtype=torch.bool)
    for row, length in enumerate(case.context_lens.tolist()):
        at = torch.arange(length)
        owned[case.block_tables[row, at // block].long() * block + at % block] = True
    nothing = torch.full((int((~owned).sum()), 2, 64), float("nan"))  # behind the last token, and in blocks of nobody
    int8_pages.put(spoilt.key_cache, torch.nonzero(~owned)[:, 0], nothing, keys=True)
    int8_pages.put(spoilt.value_cache, torch.nonzero(~owned)[:, 0], nothing[..., :48], keys=False)
    got, _ = by_kind(spoilt)
    expected = attention_reference.paged_attention(*spoilt.args())
    assert got[2].isnan().all()
    assert torch.equal(got[[0, 1, *range(23, 28)]], clean[[0, 1, *range(23, 28)]])
    assert torch.equal(expected[[0, 1, *range(23, 28)]].isnan(), got[[0, 1, *range(23, 28)]].isnan())
    assert got[22].view(2, 3, 48)[0].isnan().all(), "the last query sees the key that is not finite"
    assert expected[22].view(2, 3, 48)[0].isnan().all()


@pytest.mark.parametrize("block", [16, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_references_and_kernels_go_on_with_each_others_cache(dtype: torch.dtype, block: int) -> None:
    torch.manual_seed(3)
    length, half = 150, 70
    case = in_int8(make(block, 2, 3, 80, 64, [length], [length], dtype, Fixed(0, 0.0, None)))

    def piece(operator: Any, args: list[Any], begin: int, end: int) -> Tensor:
        part = slice(begin, end)
        starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([0, end - begin], [end]))
        told: Tensor = operator(
            case.q[part], case.k[part], case.v[part], *args[3:5], case.slots[part], case.block_tables, starts, ends,
            *args[9:],
        )  # fmt: skip
        return told

    expected = attention_reference.paged_attention(*case.args())
    native, reference = ops.paged_attention, attention_reference.paged_attention
    for first, second in ((reference, native), (native, reference)):
        args = case.args()
        got = torch.cat((piece(first, args, 0, half), piece(second, args, half, length)))
        torch.testing.assert_close(got, expected, **NEAR[dtype])


def test_numbers_of_any_size_are_sums_that_fit() -> None:
    case = make(16, 1, 1, 256, 256, [256], [1], torch.float32, Fixed(0, 0.0, None))
    full = torch.full_like(case.key_cache, -2e3)
    case = replace(case, q=torch.full_like(case.q, 3e3), k=torch.full_like(case.k, -2e3), scale=1e-9)
    case.v.fill_(1.0)
    told, _ = by_kind(in_int8(replace(case, key_cache=full, value_cache=-torch.ones_like(full))))
    torch.testing.assert_close(told, torch.full_like(told, -254 / 256), rtol=1e-3, atol=1e-3)


BAD = {
    "width": (lambda case: replace(case, key_cache=case.key_cache[..., 1:].contiguous()), "key_cache of int8 must be"),
    "strides": (
        lambda case: replace(case, value_cache=case.value_cache.transpose(0, 1)),
        "value_cache of int8 must be",
    ),
    "one": (
        lambda case: replace(case, value_cache=torch.zeros((*case.value_cache.shape[:3], 64))),
        "the caches differ in dtype: Char and Float",
    ),
    "block": (lambda case: replace(case, block_tables=case.block_tables + 99), "block 9[0-9]|1[0-9]+ of request 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_raises(name: str) -> None:
    change, message = BAD[name]
    case = change(in_int8(make(16, 2, 2, 64, 64, [40, 70], [3, 1], torch.float32, Fixed(0, 0.0, None))))
    with pytest.raises((RuntimeError, IndexError), match=message):
        ops.paged_attention(*case.args())

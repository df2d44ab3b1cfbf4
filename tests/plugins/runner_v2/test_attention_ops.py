"""Native attention is what its reference computes; a query's result is its own, however the step was put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay_runner_v2 import attention_reference
from support.attention_cases import Case, Fixed, cases, make
from support.kernel_kinds import KINDS, ops, product_kind, tolerance

DTYPES = (torch.float32, torch.bfloat16)


@settings(max_examples=40)
@given(case=st.sampled_from(DTYPES).flatmap(cases), kind=st.sampled_from(KINDS))
def test_like_the_reference(case: Case, kind: int) -> None:
    ours, theirs = case.args(), case.args()
    with product_kind(kind):
        got = ops.paged_attention(*ours)
    expected = attention_reference.paged_attention(*theirs)
    torch.testing.assert_close(got, expected, **tolerance(case.q.dtype))
    assert torch.equal(ours[3], theirs[3])
    assert torch.equal(ours[4], theirs[4])


@settings(max_examples=25)
@given(case=st.sampled_from(DTYPES).flatmap(cases), kind=st.sampled_from(KINDS), turned=st.sampled_from([1.0, 0.5]))
def test_rotary_is_turning_and_then_attention(case: Case, kind: int, turned: float) -> None:
    case = replace(case, v=case.k.neg(), value_cache=case.key_cache.neg())
    tokens, heads, size = case.q.shape
    kv_heads, dims = case.k.shape[1], int(size * turned)
    table, positions = torch.randn(700, dims), torch.randint(0, 700, (tokens,))
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    ours, theirs = case.args(), case.args()
    with product_kind(kind):
        got = ops.rotary_attention(qkv, positions, table, *ours[3:9], heads, kv_heads, *ours[9:])
    expected = attention_reference.rotary_attention(qkv, positions, table, *theirs[3:9], heads, kv_heads, *theirs[9:])
    torch.testing.assert_close(ours[3], theirs[3], **tolerance(case.q.dtype))
    assert torch.equal(ours[4], theirs[4])
    wide = tolerance(case.q.dtype)
    torch.testing.assert_close(got, expected, **(wide | {"atol": 4 * wide["atol"]}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "block"), [(0, 16), (100, 16), (0, 3), (0, 32), (100, 48)])
def test_cut_prompts_batches_and_threads_change_no_bit(kind: int, dtype: torch.dtype, window: int, block: int) -> None:
    torch.manual_seed(0)
    lengths = [700, 130, 61]
    case = make(block, 3, 3, 64, 64, lengths, lengths, dtype, Fixed(window, 0.0, None))
    with product_kind(kind):
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_stays_in_its_request(kind: int) -> None:
    for dtype in DTYPES:
        torch.manual_seed(1)
        case = make(16, 2, 2, 64, 64, [40, 70, 5], [3, 1, 5], dtype, Fixed(0, 0.0, None))
        with product_kind(kind):
            clean = ops.paged_attention(*case.args())
            case.q[3] = float("nan")
            stale = case.key_cache.clone().fill_(float("nan"))  # what no request owns may hold anything
            used = case.block_tables.unique().tolist()
            for block in set(range(stale.shape[0])) - set(used[: len(used)]):
                case.key_cache[block], case.value_cache[block] = stale[block], stale[block]
            spoilt = ops.paged_attention(*case.args())
        assert spoilt[3].isnan().all()
        others = [token for token in range(9) if token != 3]
        assert torch.equal(spoilt[others], clean[others])


@pytest.mark.parametrize("block", [16, 32, 48, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_the_last_token_changes_nothing(kind: int, block: int) -> None:
    for dtype in DTYPES:
        torch.manual_seed(2)
        lengths = [33, 70, 5, 300]
        case = make(block, 2, 3, 64, 48, lengths, [1, 20, 5, 44], dtype, Fixed(0, 0.0, None))
        stale = case.args()
        for row, length in enumerate(lengths):
            for pages in attention_reference.by_token(stale[3], stale[4]):
                last, inside = int(case.block_tables[row, (length - 1) // block]), pages.shape[1:]
                for at in range((length - 1) % block + 1, block):
                    where = (at,)
                    if len(inside) > 3:  # packed: a group's tokens, or pairs of them, are dimensions of their own
                        where = (at // 16, at % 16)
                    if len(inside) > 5:
                        where = (at // (2 * inside[1]), at // 2 % inside[1], at % 2)
                    pages[(last, *where)] = float("nan")
        with product_kind(kind):
            assert torch.equal(ops.paged_attention(*stale), ops.paged_attention(*case.args()))


@pytest.mark.parametrize(
    ("block", "sizes"), [(16, (64, 48)), (32, (32, 64)), (48, (64, 64)), (8, (64, 64)), (16, (80, 64))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_references_and_kernels_go_on_with_each_others_cache(
    dtype: torch.dtype, block: int, sizes: tuple[int, int]
) -> None:
    torch.manual_seed(3)
    length, half = 150, 70
    case = make(block, 2, 3, *sizes, [length], [length], dtype, Fixed(0, 0.0, None))

    def piece(operator: Any, args: list[Any], begin: int, end: int) -> torch.Tensor:
        part = slice(begin, end)
        starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([0, end - begin], [end]))
        return operator(
            case.q[part], case.k[part], case.v[part], *args[3:5], case.slots[part], case.block_tables, starts, ends,
            *args[9:],
        )  # fmt: skip

    expected = attention_reference.paged_attention(*case.args())
    native, reference = ops.paged_attention, attention_reference.paged_attention
    for first, second in ((reference, native), (native, reference)):
        args = case.args()
        got = torch.cat((piece(first, args, 0, half), piece(second, args, half, length)))
        torch.testing.assert_close(got, expected, **tolerance(dtype))


def spoilt(name: str, change: Any) -> Any:
    def apply(case: Case) -> Case:
        return replace(case, **{name: change(getattr(case, name).clone())})

    return apply


def put(index: Any, value: int) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[index] = value
        return tensor

    return change


BAD = {
    "block": (spoilt("block_tables", put((0, 0), 99)), "block 99 of request 0 is not one of"),
    "negative block": (spoilt("block_tables", put((1, 1), -1)), "block -1 of request 1 is not one of"),
    "slot": (spoilt("slots", put(2, 1 << 40)), "slot 1099511627776 of token 2 is not one of"),
    "negative slot": (spoilt("slots", put(0, -1)), "slot -1 of token 0 is not one of"),
    "starts": (spoilt("query_starts", put(-1, 3)), "query_starts go from 0 to 3, and there are 4 tokens"),
    "falling starts": (spoilt("query_starts", put(1, 7)), "request 1 has -3 queries"),
    "length": (spoilt("context_lens", put(0, 2)), "request 0 has 3 queries in a context of 2"),
    "long": (spoilt("context_lens", put(0, 10_000)), "request 0 needs 625 blocks of"),
    "dtype": (spoilt("key_cache", lambda t: t.bfloat16()), "key_cache is of BFloat16, and queries of Float"),
    "ints": (spoilt("slots", lambda t: t.int()), "slots must be a contiguous Long tensor of 1 dimensions"),
    "heads": (spoilt("q", lambda t: t[:, :3]), "3 heads cannot share 2 key heads"),
    "size": (spoilt("q", lambda t: t[..., :32]), "q, k and v do not fit together"),
    "tokens": (spoilt("k", lambda t: t[:2]), "q, k and v do not fit together"),
    "cache": (spoilt("value_cache", lambda t: t[:-1]), "the caches differ in blocks"),
    "sinks": (lambda case: replace(case, sinks=torch.ones(3)), "there are 4 heads and 3 sinks"),
    "window": (lambda case: replace(case, window=-1), "window and softcap are not negative"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_raises(name: str) -> None:
    change, message = BAD[name]
    case = change(make(16, 2, 2, 64, 64, [40, 70], [3, 1], torch.float32, Fixed(0, 0.0, None)))
    with pytest.raises((RuntimeError, ValueError, IndexError), match=message):
        ops.paged_attention(*case.args())


@settings(max_examples=60)
@given(case=cases(torch.float32, max_length=80), data=st.data())
def test_wild_indices_raise_or_work_and_never_crash(case: Case, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["slots", "block_tables", "query_starts", "context_lens"]))
    tensor = getattr(case, name).clone()
    if tensor.numel():
        at = data.draw(st.integers(0, tensor.numel() - 1))
        tensor.view(-1)[at] = data.draw(st.integers(-(1 << 31), (1 << 31) - 1))
    try:
        out = ops.paged_attention(*replace(case, **{name: tensor}).args())
    except (RuntimeError, ValueError, IndexError):
        return
    assert out.shape == (case.q.shape[0], case.q.shape[1] * case.v.shape[2])

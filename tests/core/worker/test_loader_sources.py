"""Tensors that were given in pieces are put together again, and nonsense is refused before memory is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.control.tensors import chunks_of
from enginebay.errors import InvalidRequest, ModelError
from enginebay.messages import TensorPiece
from enginebay.worker.loader_sources import GivenWeights

DTYPES = ("float32", "bfloat16", "float16")


def everything(weights: GivenWeights) -> dict[str, torch.Tensor]:
    return dict(weights.tensors(lambda name: True, lambda name: False))


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3), st.booleans()), max_size=5),
    st.integers(1, 100),
)
def test_what_is_cut_is_put_together_again(shapes: list[tuple[str, list[int], bool]], chunk_bytes: int) -> None:
    given: dict[str, torch.Tensor] = {}
    for number, (dtype, shape, turned) in enumerate(shapes):
        tensor = torch.randn(*shape).to(getattr(torch, dtype)) if shape else torch.tensor(1.5)
        given[f"t{number}"] = tensor.t() if turned and tensor.dim() == 2 else tensor
    weights = GivenWeights(room=1_000_000)
    for chunk in chunks_of(given.items(), chunk_bytes):
        assert sum(len(piece.data) for piece in chunk.pieces) <= chunk_bytes
        for piece in chunk.pieces:
            weights.put(piece)
    got = everything(weights)
    assert list(got) == list(given) == list(weights.headers())
    for name, tensor in given.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor)


def test_tensors_of_numpy() -> None:
    weights = GivenWeights(room=100)
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    for chunk in chunks_of([("a", array)]):
        for piece in chunk.pieces:
            weights.put(piece)
    assert weights.headers() == {"a": {"dtype": "F32", "shape": [3, 2]}}
    assert np.array_equal(everything(weights)["a"].numpy(), array)


@pytest.mark.parametrize(
    "given",
    [
        [("a",)],
        ["ab"],
        [(1, torch.zeros(1))],
        [("a", [1.0])],
        [("a", torch.zeros(1, dtype=torch.int64))],
        [("a", np.zeros(1))],
        [("a", None)],
    ],
)
def test_what_is_no_named_tensor(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        list(chunks_of(given))


def piece(**fields: Any) -> TensorPiece:
    return TensorPiece(**{"name": "a", "dtype": "float32", "shape": (2,), "data": bytes(8), **fields})


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([piece(dtype="int8")], "a is given as int8 [2]: no tensor of floats"),
        ([piece(shape=(-1,))], "a is given as float32 [-1]: no tensor of floats"),
        ([piece(shape=(1,) * 99)], "no tensor of floats"),
        ([piece(shape=(2**40,))], f"a has {2**42} bytes, more than is left of the model's weights"),
        ([piece(), piece(name="b"), piece(name="c")], "c has 8 bytes, more than is left"),
        ([piece(offset=4)], "a piece of a does not belong to what was given of it before"),
        ([piece(data=bytes(4)), piece(data=bytes(4), offset=4, dtype="bfloat16", shape=(4,))], "does not belong"),
        ([piece(data=bytes(9))], "a has 8 bytes, of which 0 were given; a piece came for byte 0"),
        ([piece(), piece()], "a has 8 bytes, of which 8 were given; a piece came for byte 0"),
        ([piece(data=bytes(4)), piece(data=bytes(4), offset=6)], "of which 4 were given; a piece came for byte 6"),
    ],
)
def test_pieces_that_do_not_follow(pieces: list[TensorPiece], said: str) -> None:
    weights = GivenWeights(room=20)
    *good, bad = pieces
    for one in good:
        weights.put(one)
    with pytest.raises(ModelError) as caught:
        weights.put(bad)
    assert said in str(caught.value)


def test_a_tensor_that_is_not_whole() -> None:
    weights = GivenWeights(room=20)
    weights.put(piece(data=bytes(4)))
    with pytest.raises(ModelError, match=r"^a was given in part: 4 of 8 bytes$"):
        weights.headers()

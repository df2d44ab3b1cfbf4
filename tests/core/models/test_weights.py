"""Files and index must say the same of every tensor; whoever obeyed only one of them would load other weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.errors import ModelError
from enginebay.models import check_weights, weight_files

INDEX = "model.safetensors.index.json"


def _write(path: Path, *names: str) -> None:
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]} for at, name in enumerate(names)
    }
    _write_header(path, json.dumps(header).encode(), bytes(4 * len(names)))


def _write_header(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def _index(folder: Path, **where: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))


def _refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_weights(folder)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Tensor ``a`` in one file, ``b`` and ``c`` in the other, and an index that says so."""
    _write(tmp_path / "1.safetensors", "a")
    _write(tmp_path / "2.safetensors", "b", "c")
    _index(tmp_path, a="1.safetensors", b="2.safetensors", c="2.safetensors")
    return tmp_path


def test_shards_that_agree_with_their_index(shards: Path) -> None:
    assert sorted(check_weights(shards)) == ["a", "b", "c"]
    assert weight_files(shards) == [shards / "1.safetensors", shards / "2.safetensors"]


def test_an_index_of_the_one_file(tmp_path: Path) -> None:
    _write(tmp_path / "model.safetensors", "a")
    _index(tmp_path, a="model.safetensors")
    assert sorted(check_weights(tmp_path)) == ["a"]


def test_a_tensor_in_two_files(shards: Path) -> None:
    _write(shards / "2.safetensors", "b", "a", "c")
    assert _refusal(shards) == f"{shards} has the tensor 'a' twice, in 1.safetensors and 2.safetensors"


def test_a_tensor_in_another_file_than_named(shards: Path) -> None:
    _index(shards, a="1.safetensors", b="1.safetensors", c="2.safetensors")
    assert _refusal(shards) == (f"{shards}: {INDEX} names 1.safetensors for the tensor 'b', which is in 2.safetensors")


def test_a_tensor_that_no_file_has(shards: Path) -> None:
    _index(shards, a="1.safetensors", b="2.safetensors", c="2.safetensors", ghost="1.safetensors")
    assert _refusal(shards) == f"{shards}: {INDEX} names the tensor 'ghost', which no file has"


def test_a_tensor_that_the_index_lacks(shards: Path) -> None:
    _index(shards, a="1.safetensors", b="2.safetensors")
    assert _refusal(shards) == f"{shards}: 2.safetensors has the tensor 'c', which {INDEX} lacks"


def test_a_whole_file_beside_an_index_of_others(shards: Path) -> None:
    _write(shards / "model.safetensors", "a", "b", "c")
    message = (
        f"{shards} has its weights twice: in model.safetensors, and in 1.safetensors as {INDEX} says; "
        "remove one of them"
    )
    assert _refusal(shards) == message
    with pytest.raises(ModelError) as caught:  # the loader asks for the files alone
        weight_files(shards)
    assert str(caught.value) == message


def test_names_cannot_break_the_line(shards: Path) -> None:
    _index(shards, **{"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors", "x\n\x1b": "1.safetensors"})
    assert _refusal(shards) == f"{shards}: {INDEX} names the tensor 'x??', which no file has"
    _index(shards, a="x\n.safetensors")
    assert _refusal(shards) == f"{shards} has no x?.safetensors, which {INDEX} names; fetch the missing file"
    _index(shards, a="x\n")
    assert _refusal(shards) == f"{shards / INDEX} names 'x?', which is no safetensors file of this folder"


ENTRY = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY.replace("4]", "Infinity]"),
        ENTRY.replace("4]", "1e999]"),
        ENTRY.replace("4]", "NaN]"),
        ENTRY.replace("4]", "4.0]"),
        ENTRY.replace("4]", "9" * 5000 + "]"),
        ENTRY.replace("4]", f"{2**63}]"),
        ENTRY.replace("4]", "true]"),
        ENTRY.replace("[0,4]", "[-4,-1]"),
        ENTRY.replace("[0,4]", "[4,0]"),
        ENTRY.replace("[0,4]", '["0","4"]'),
        ENTRY.replace("[0,4]", "[0]"),
        ENTRY.replace("[0,4]", "[0,4,8]"),
        ENTRY.replace("[0,4]", "null"),
        ENTRY.replace("[1]", "[-1]"),
        ENTRY.replace("[1]", "1"),
        ENTRY.replace('"F32"', '["F32"]'),
        ENTRY.replace('"shape":[1],', ""),
        ENTRY.replace('"dtype":"F32",', ""),
        "5",
        "[]",
        "[" * 200_000,
        '"\xff"',
    ],
    ids=range(22),
)
def test_headers_that_are_not_of_the_format(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "model.safetensors"
    _write_header(path, b'{"a":' + entry.encode("latin-1") + b"}", bytes(16))
    assert _refusal(tmp_path) == (f"{path} is damaged: its header is not what safetensors asks for. Fetch it again.")


def test_the_entry_that_they_are_made_of_is_of_the_format(tmp_path: Path) -> None:
    _write_header(tmp_path / "model.safetensors", b'{"a":' + ENTRY.encode() + b"}", bytes(4))
    assert check_weights(tmp_path) == {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}

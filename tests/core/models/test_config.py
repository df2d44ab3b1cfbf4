"""config.json is read once for all, and what no model can mean is refused by its key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import ModelError
from enginebay.models import read_config

PLAIN: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def refusal(path: Path, config: dict[str, Any] | str) -> str:
    path.write_text(config if isinstance(config, str) else json.dumps(PLAIN | config))
    with pytest.raises(ModelError) as caught:
        read_config(path.parent)
    assert str(caught.value).isprintable()
    return str(caught.value).removeprefix(str(path))


def test_what_is_there_is_returned(path: Path) -> None:
    config = PLAIN | {"model_type": None, "large": 2**63 - 1, "deep": [[{"a": 1}]]}
    path.write_text(json.dumps(config))
    assert read_config(path.parent) == config


@pytest.mark.parametrize("number", [2**63, 2**70, 10**30, -(2**63)])
@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("hidden_size", lambda n: {"hidden_size": n}),
        ("max_position_embeddings", lambda n: {"max_position_embeddings": n}),
        ("rope_parameters.factor", lambda n: {"rope_parameters": {"rope_type": "yarn", "factor": n}}),
        ("eos_token_id", lambda n: {"eos_token_id": [1, n]}),
        ("a.b", lambda n: {"a": [{"b": [[n]]}]}),
    ],
)
def test_numbers_beyond_64_bits(path: Path, number: int, key: str, place: Any) -> None:
    assert refusal(path, place(number)) == f": {key} is beyond the numbers of 64 bits"


@pytest.mark.parametrize(
    ("text", "shown"), [("Infinity", "inf"), ("-Infinity", "-inf"), ("NaN", "nan"), ("1e999", "inf")]
)
def test_numbers_that_are_not_finite(path: Path, text: str, shown: str) -> None:
    config = json.dumps(PLAIN)[:-1] + f', "rms_norm_eps": {text}}}'
    assert refusal(path, config) == f": rms_norm_eps is {shown}, which is no finite number"


@pytest.mark.parametrize(("value", "shown"), [(5, "5"), (["llama"], "['llama']"), ({}, "{}"), (True, "True")])
def test_a_model_type_that_is_no_name(path: Path, value: object, shown: str) -> None:
    assert refusal(path, {"model_type": value}) == f": model_type is {shown}, which is no name"


@pytest.mark.parametrize("depth", [65, 400])
@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_nested_too_deep(path: Path, depth: int, bracket: str) -> None:
    opening = "[" if bracket == "[]" else '{"a":'
    inner = opening * depth + "1" + bracket[1] * depth
    assert refusal(path, json.dumps(PLAIN)[:-1] + f', "x": {inner}}}') == ": x is nested more than 64 deep"


def test_nested_without_end(path: Path) -> None:
    assert refusal(path, '{"a":' * 100_000).startswith(" is not valid JSON: maximum recursion depth exceeded")


def test_a_pipe_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ModelError) as caught:
        read_config(path.parent)
    assert str(caught.value) == f"cannot read {path}: it is a pipe, no regular file"


def test_a_folder_in_its_place(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ModelError) as caught:
        read_config(path.parent)
    assert str(caught.value) == f"cannot read {path}: it is a folder, no regular file"

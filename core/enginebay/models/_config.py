"""config.json of a model folder, read with what no model can mean refused: before it is sent, sized or built."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError, one_line
from enginebay.models._files import read_json

_MAX_INT = 2**63 - 1  # what a message and torch's sizes hold
_MAX_DEPTH = 64


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ``ModelError`` when it is missing, damaged, asks for code of its own, names no
    architecture, or has a number that nothing can hold.
    """
    path = folder / "config.json"
    config = read_json(path)
    for key, value in _leaves(path, config):
        if isinstance(value, int) and not -_MAX_INT <= value <= _MAX_INT:
            raise ModelError(one_line(f"{path}: {key} is beyond the numbers of 64 bits"))
        if isinstance(value, float) and not math.isfinite(value):
            raise ModelError(one_line(f"{path}: {key} is {value}, which is no finite number"))
    if "auto_map" in config:
        raise ModelError(f"{folder} asks to run code of its own (auto_map in config.json), which is refused")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError(f"{path} names no architecture")
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise ModelError(one_line(f"{path}: model_type is {model_type!r}, which is no name"))
    return config


def check_layers(path: Path, layers: object, num_tensors: int) -> None:
    """Refuse more layers than there are tensors, before anything loops by that number; ``path`` is for the message."""
    if isinstance(layers, int) and layers > num_tensors:
        raise ModelError(f"{path}: num_hidden_layers is {layers}, and the weights are only {num_tensors} tensors")


def _leaves(path: Path, config: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Every value that is no object or list, with its key as in ``rope_parameters.factor``; not by recursion."""
    todo: list[tuple[str, object, int]] = [(key, value, 1) for key, value in config.items()]
    while todo:
        key, value, depth = todo.pop()
        if depth > _MAX_DEPTH:
            raise ModelError(one_line(f"{path}: {key.partition('.')[0]} is nested more than {_MAX_DEPTH} deep"))
        if isinstance(value, dict):
            todo += [(f"{key}.{inner}", one, depth + 1) for inner, one in value.items()]
        elif isinstance(value, list):
            todo += [(key, one, depth + 1) for one in value]
        else:
            yield key, value

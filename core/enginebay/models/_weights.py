"""The weights of a model folder: which files hold them, and that index and files say the same of every tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enginebay.errors import ModelError, one_line
from enginebay.models._files import has_file, read_json
from enginebay.models._safetensors import read_safetensors_header

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, one or the shards of its index. Raises ``ModelError`` when any is missing."""
    if has_file(folder / INDEX):
        return [folder / shard for shard in sorted(set(_weight_map(folder).values()))]
    if has_file(folder / SINGLE):
        return [folder / SINGLE]
    pickles = sorted(f.name for pattern in _PICKLES for f in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder} has its weights in {pickles[0]}, which can run code when it is opened; safetensors and GGUF only"
        )
    if guesses := sorted(f.name for f in folder.glob("*.gguf")):
        raise ModelError(
            f"{folder} has no safetensors; to use its GGUF file, set [model] path to {folder / guesses[0]}"
        )
    raise ModelError(f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there")


def check_weights(folder: Path) -> dict[str, dict[str, Any]]:
    """The headers of all weights, by tensor: ``dtype``, ``shape`` and ``data_offsets``; no weight is read.

    Raises ``ModelError`` when a file is missing, truncated or damaged, and when two files, or the files and their
    index, disagree on where a tensor is: whoever reads them another way would get other weights.
    """
    tensors: dict[str, dict[str, Any]] = {}
    where: dict[str, str] = {}
    for file in weight_files(folder):
        header = read_safetensors_header(file)
        for name in header:
            if name in where:
                raise ModelError(one_line(f"{folder} has the tensor '{name}' twice, in {where[name]} and {file.name}"))
            where[name] = file.name
        tensors |= header
    if has_file(folder / INDEX):
        _compare(folder, _weight_map(folder), where)
    return tensors


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor → shard as the index says it; every shard is there."""
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ModelError(f"{folder / INDEX} has no weight_map")
    named = {name: str(shard) for name, shard in index.items()}
    shards = sorted(set(named.values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelError(one_line(f"{folder / INDEX} names '{shard}', which is no safetensors file of this folder"))
        if not has_file(folder / shard):
            raise ModelError(one_line(f"{folder} has no {shard}, which {INDEX} names; fetch the missing file"))
    if SINGLE not in shards and has_file(folder / SINGLE):
        raise ModelError(
            one_line(
                f"{folder} has its weights twice: in {SINGLE}, and in {shards[0]} as {INDEX} says; remove one of them"
            )
        )
    return named


def _compare(folder: Path, named: dict[str, str], where: dict[str, str]) -> None:
    for name, shard in named.items():
        if name not in where:
            raise ModelError(one_line(f"{folder}: {INDEX} names the tensor '{name}', which no file has"))
        if where[name] != shard:
            raise ModelError(
                one_line(f"{folder}: {INDEX} names {shard} for the tensor '{name}', which is in {where[name]}")
            )
    if extra := sorted(where.keys() - named.keys()):
        raise ModelError(one_line(f"{folder}: {where[extra[0]]} has the tensor '{extra[0]}', which {INDEX} lacks"))

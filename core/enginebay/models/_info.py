"""What can be known of a model folder without torch and without reading weights; and everything wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError
from enginebay.messages import ModelInfo
from enginebay.models._files import read_json
from enginebay.models._safetensors import read_safetensors_header

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def read_model_info(folder: Path, *, name: str | None = None, needs_tokenizer: bool = True) -> ModelInfo:
    """Read and check a model folder: config, tokenizer, and the headers of all safetensors files.

    ``name`` is how the model is called; unset: the folder's name. ``needs_tokenizer`` is False where the config names
    another one. Raises ``ModelError`` in one line for a folder that
    is missing, incomplete, truncated, or asks for code of its own.
    """
    if not folder.is_dir():
        raise ModelError(f"there is no model folder {folder}")
    config = read_json(folder / "config.json")
    if "auto_map" in config:
        raise ModelError(f"{folder} asks to run code of its own (auto_map in config.json), which is refused")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError(f"{folder / 'config.json'} names no architecture")
    dtype = _dtype(config, check_weights(folder))
    if needs_tokenizer and not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json; fetch it from where the model came from, or set [model] tokenizer"
        )
    text = config.get("text_config")
    sizes = {**text, **config} if isinstance(text, dict) else config
    model_length = next((sizes[key] for key in _LENGTHS if _is_size(sizes.get(key))), None)
    if not _is_size(sizes.get("vocab_size")) or model_length is None:
        what = "vocab_size" if model_length is not None else "max_position_embeddings"
        raise ModelError(f"{folder / 'config.json'} has no usable {what}")
    generation = read_json(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    bos = _ids(generation.get("bos_token_id")) or _ids(sizes.get("bos_token_id"))
    return ModelInfo(
        path=str(folder),
        name=name or folder.absolute().name,
        architecture=architectures[0],
        model_type=str(config.get("model_type", "")),
        vocab_size=sizes["vocab_size"],
        max_model_len=model_length,
        dtype=dtype,
        eos_token_ids=_ids(generation.get("eos_token_id")) or _ids(sizes.get("eos_token_id")),
        bos_token_id=bos[0] if bos else None,
        config=config,
    )


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, one or the shards of its index. Raises ``ModelError`` when any is missing."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise ModelError(f"{folder / INDEX} has no weight_map")
        shards = sorted({str(shard) for shard in index.values()})
        for shard in shards:
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise ModelError(f"{folder / INDEX} names '{shard}', which is no safetensors file of this folder")
            if not (folder / shard).is_file():
                raise ModelError(f"{folder} has no {shard}, which {INDEX} names; fetch the missing file")
        return [folder / shard for shard in shards]
    if (folder / SINGLE).is_file():
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
    """The headers of all weights, by tensor; raises ``ModelError`` when a file is missing, truncated or damaged."""
    tensors: dict[str, dict[str, Any]] = {}
    for file in weight_files(folder):
        tensors |= read_safetensors_header(file)
    return tensors


def _dtype(config: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]]) -> str:
    said = config.get("dtype", config.get("torch_dtype"))
    if isinstance(said, str):
        return said.removeprefix("torch.")
    kinds = [str(entry.get("dtype")) for entry in tensors.values()]
    return _DTYPES.get(max(set(kinds), key=kinds.count), "float32")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _ids(value: object) -> tuple[int, ...]:
    """Token ids from a number, a list of them, or nothing."""
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)

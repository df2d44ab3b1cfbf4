"""What can be known of a model folder without torch and without reading weights; and everything wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError, one_line
from enginebay.messages import ModelInfo
from enginebay.models._config import check_layers, read_config
from enginebay.models._files import has_file, is_folder, is_there, read_json
from enginebay.models._generation import ignored_settings
from enginebay.models._weights import check_weights

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
MAX_LENGTH = 2**31 - 1  # positions are counted in 32 bits by some kernels, and no model comes near


def read_model_info(folder: Path, *, name: str | None = None, needs_tokenizer: bool = True) -> ModelInfo:
    """Read and check a model folder: config, tokenizer, and the headers of all safetensors files.

    ``name`` is how the model is called; unset: the folder's name. ``needs_tokenizer`` is False where the config names
    another one. Raises ``ModelError`` in one line for a folder that
    is missing, incomplete, truncated, or asks for code of its own.
    """
    if not is_folder(folder):
        raise ModelError(f"there is no model folder {folder}")
    config = read_config(folder)
    tensors = check_weights(folder)
    check_layers(folder / "config.json", config.get("num_hidden_layers"), len(tensors))
    if needs_tokenizer and not has_file(folder / "tokenizer.json"):
        raise ModelError(
            f"{folder} has no tokenizer.json; fetch it from where the model came from, or set [model] tokenizer"
        )
    text = config.get("text_config")
    sizes = {**text, **config} if isinstance(text, dict) else config
    generation = _generation(folder)
    bos = _ids(generation.get("bos_token_id")) or _ids(sizes.get("bos_token_id"))
    return ModelInfo(
        path=str(folder),
        name=name or folder.absolute().name,
        architecture=one_line(config["architectures"][0]),
        model_type=one_line(config.get("model_type") or ""),
        vocab_size=_vocab_size(folder, sizes),
        max_model_len=_length(folder, sizes),
        dtype=_dtype(config, tensors),
        eos_token_ids=_ids(generation.get("eos_token_id")) or _ids(sizes.get("eos_token_id")),
        bos_token_id=bos[0] if bos else None,
        config=config,
        ignored_generation=ignored_settings(generation),
    )


def _generation(folder: Path) -> dict[str, Any]:
    """generation_config.json, or nothing when there is none."""
    path = folder / "generation_config.json"
    return read_json(path) if is_there(path) else {}


def _length(folder: Path, sizes: Mapping[str, Any]) -> int:
    key = next((key for key in _LENGTHS if _is_size(sizes.get(key))), None)
    if key is None:
        raise ModelError(f"{folder / 'config.json'} has no usable max_position_embeddings")
    length: int = sizes[key]
    if length > MAX_LENGTH:
        raise ModelError(f"{folder / 'config.json'}: {key} is {length}, and a text may have {MAX_LENGTH} tokens")
    return length


def _vocab_size(folder: Path, sizes: Mapping[str, Any]) -> int:
    if not _is_size(sizes.get("vocab_size")):
        raise ModelError(f"{folder / 'config.json'} has no usable vocab_size")
    size: int = sizes["vocab_size"]
    return size


def _dtype(config: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]]) -> str:
    said = config.get("dtype", config.get("torch_dtype"))
    if isinstance(said, str):
        return one_line(said.removeprefix("torch."))
    kinds = [str(entry.get("dtype")) for entry in tensors.values()]
    return _DTYPES.get(max(dict.fromkeys(kinds), key=kinds.count), "float32")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _ids(value: object) -> tuple[int, ...]:
    """Token ids from a number, a list of them, or nothing."""
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)

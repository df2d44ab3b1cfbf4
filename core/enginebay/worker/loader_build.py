"""Builds transformers' own module on the meta device, from config.json alone: what it is, before it has any weight."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.models import check_layers, one_line, read_config

__all__ = ["build_on_meta", "detail", "kept_in_float32"]

_EXPERTS = "grouped_mm"
"""How transformers multiplies by experts: all tokens of an expert at once."""
_MAX_DETAIL = 400


def build_on_meta(folder: Path, architecture: str, attention: str, num_tensors: int) -> Any:
    import transformers

    path, raw = folder / "config.json", read_config(folder)

    model_class = getattr(transformers, architecture, None)
    if model_class is None:
        raise ModelError(f"transformers {transformers.__version__} has no model class named '{architecture}'")
    try:
        own = model_class.config_class.model_type
        if raw.get("model_type") not in (None, own):
            raise ModelError(one_line(f"{path}: model_type is '{raw['model_type']}', and {architecture} is of '{own}'"))
        check_layers(path, raw.get("num_hidden_layers"), num_tensors)
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
        check_layers(path, config.num_hidden_layers, num_tensors)  # under whatever name the file has it
        config._attn_implementation = attention
        if model_class._can_set_experts_implementation():
            config._experts_implementation = _EXPERTS
        with torch.device("meta"):
            return model_class(config)
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # transformers' own checks of a stranger's values raise errors of every kind
        raise ModelError(f"{path}: {architecture} cannot be built from it: {detail(error)}") from error


def kept_in_float32(model: Any, dtype: torch.dtype) -> re.Pattern[str] | None:
    """The weights that transformers keeps in float32 at this dtype; None: no weight."""
    names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ()) if dtype != torch.float32 else set()
    if dtype == torch.float16:
        names |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return re.compile("|".join(rf"(?:^|\.){re.escape(name)}(?:$|\.)" for name in sorted(names))) if names else None


def detail(error: Exception) -> str:
    """What the error is and says, in one line that ends."""
    return one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", _MAX_DETAIL)

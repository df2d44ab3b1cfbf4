"""A model without its weights: transformers' own module, on its device, with weights of any content to be filled.

No file of weights is read: a peer fills them in.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from enginebay.worker.buffers import recreate_buffers
from enginebay.worker.loader import Whole, WorldPart, torch_dtype
from enginebay.worker.loader_build import build_on_meta, kept_in_float32

__all__ = ["empty_causal_lm", "weights_of"]


def empty_causal_lm(
    folder: Path, *, architecture: str, dtype: str, device: str, attention: str, part: WorldPart | None = None
) -> Any:
    """As ``load_causal_lm``, from ``folder``'s config.json alone, whose ``ModelError`` it raises."""
    model = build_on_meta(folder, architecture, attention, sys.maxsize)  # how many tensors a file has nobody looks at
    (part or Whole()).prepare(model)
    target, wanted = torch.device(device), torch_dtype(dtype)
    kept = kept_in_float32(model, wanted)
    made: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        own = tensor.dtype
        if tensor.is_floating_point():
            own = torch.float32 if kept is not None and kept.search(name) else wanted
        state[name] = made.setdefault(id(tensor), torch.empty(tensor.shape, dtype=own, device=target))
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    recreate_buffers(model, target, folder)
    model.eval()
    model.requires_grad_(requires_grad=False)
    return model


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    """What a file holds of the model, or a peer: its parameters, tied ones once, and the buffers that are kept."""
    tied = getattr(model, "_tied_weights_keys", None) or {}
    copies = set(tied) if getattr(model.config, "tie_word_embeddings", False) else set()
    kept = model.state_dict(keep_vars=True)
    weights = {name: parameter.data for name, parameter in model.named_parameters() if name not in copies}
    return weights | {name: buffer for name, buffer in model.named_buffers() if name in kept}

"""Other weights for a model that exists: the same folder, with every matrix drawn anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def redraw(model: Path, target: Path, *, seed: int = 7) -> Path:
    """A copy of a model's folder whose weights answer otherwise."""
    shutil.copytree(model, target)
    generator = torch.Generator().manual_seed(seed)
    for path in target.glob("*.safetensors"):
        tensors = load_file(path)
        drawn = {
            name: torch.randn(one.shape, generator=generator).to(one.dtype) * 0.05 if one.dim() > 1 else one
            for name, one in tensors.items()
        }
        path.unlink()  # the old one may be mapped
        save_file(drawn, path, metadata={"format": "pt"})
    return target


def tensors_of(model: Path) -> dict[str, torch.Tensor]:
    """What the folder's files hold."""
    return {name: one for path in sorted(model.glob("*.safetensors")) for name, one in load_file(path).items()}

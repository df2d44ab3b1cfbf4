"""Makes anew what no file holds: buffers that a module computes from its config, without values after a meta build.

transformers' own rule for a module's initial values computes them. It is asked twice, over different numbers, so that
a buffer which the rule does not reach shows itself instead of holding whatever was in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from enginebay.errors import ModelError

__all__ = ["recreate_buffers"]


def recreate_buffers(model: Any, target: torch.device, folder: Path) -> None:
    """Give every buffer without values the ones that transformers gives it, on ``target``.

    Raises ``ModelError`` for a buffer that transformers' rule does not set, and for rope settings without finite
    frequencies.
    """
    for name, module, owner in _with_owner("", model, model):
        keys = [
            key
            for key, buffer in module.named_buffers(recurse=False)
            if buffer.is_meta and key in module._non_persistent_buffers_set
        ]
        if not keys:
            continue
        for key, values in _computed(owner, module, keys, name).items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                raise ModelError(f"{folder / 'config.json'}: its rope settings give frequencies that are not finite")
            module._buffers[key] = values.to(target)


def _with_owner(name: str, module: torch.nn.Module, owner: Any) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Every module below this one, itself included, with the innermost of transformers' models that it is part of."""
    if hasattr(module, "_init_weights"):
        owner = module
    yield name, module, owner
    for key, child in module.named_children():
        yield from _with_owner(f"{name}.{key}" if name else key, child, owner)


def _computed(owner: Any, module: torch.nn.Module, keys: list[str], name: str) -> dict[str, torch.Tensor]:
    found = []
    for number in (0, 1):
        for key in keys:
            buffer = module._buffers[key]
            assert buffer is not None, "a buffer that was found has a tensor"
            module._buffers[key] = torch.full(buffer.shape, number, dtype=buffer.dtype, device="cpu")
        _initialize(owner, module)
        found.append({key: module._buffers[key] for key in keys})
    first, second = found
    unset = [key for key in keys if not torch.equal(_bits(first[key]), _bits(second[key]))]
    if unset:
        raise ModelError(
            f"{name} ({type(module).__name__}) has buffers that no file holds, and transformers' rule does not set: "
            + ", ".join(unset)
        )
    return {key: tensor for key, tensor in second.items() if tensor is not None}


def _initialize(owner: Any, module: torch.nn.Module) -> None:
    """transformers' rule for this one module. It leaves alone what is marked: the weights that the file gave."""
    weights = [*module.parameters(recurse=False)]
    before = [weight._version for weight in weights]
    for weight in weights:
        weight._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers' own mark
    with torch.no_grad():
        owner._init_weights(module)
    for weight in weights:
        del weight._is_hf_initialized  # type: ignore[attr-defined]  # as above
    assert [weight._version for weight in weights] == before, "a rule for initial values wrote to loaded weights"


def _bits(values: torch.Tensor | None) -> torch.Tensor:
    """Comparable also where a value is no number."""
    assert values is not None, "a buffer that was set has a tensor"
    return torch.nan_to_num(values) if values.is_floating_point() else values

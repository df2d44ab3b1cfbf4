"""Builds transformers' module for capture: no file of weights is read, and none takes memory.

It is probed with stand-in weights, random numbers of which each matrix is a view: element (i, j) is number i + j of a
line. They are as good as any to see which tokens a token depends on, and cost a row and a column. Export then needs
shapes alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from enginebay.worker.buffers import recreate_buffers
from enginebay.worker.loader import torch_dtype
from enginebay.worker.loader_build import build_on_meta, kept_in_float32
from enginebay.worker.probing.interface import register
from enginebay.worker.probing.probe import probe
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["CAPTURING", "stand_in"]

CAPTURING = "enginebay_capturing"
"""The name of the attention function during capture."""
_SEED = 20


def stand_in(folder: Path, architecture: str, dtype: str) -> tuple[Any, tuple[LayerShape, ...]]:
    """The module of ``folder``, with weights of ``dtype`` that have shapes and no values, and with its buffers; and
    what each layer's attention works on.

    Raises ``ModelError`` for a config that builds no model, and for one that paged attention would not run exactly.
    """
    register(CAPTURING)
    model = build_on_meta(folder, architecture, CAPTURING, sys.maxsize)  # no file whose tensors could be too many
    model.eval()
    recreate_buffers(model, torch.device("cpu"), folder)
    generator = torch.Generator().manual_seed(_SEED)
    _replace_weights(model, lambda _, weight: _line(weight.shape, generator).to(weight.dtype))
    shapes = probe(model)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    wanted = torch_dtype(dtype)
    kept = kept_in_float32(model, wanted)

    def without_values(name: str, weight: torch.Tensor) -> torch.Tensor:
        own = torch.float32 if kept is not None and kept.search(name) else wanted
        with mode:
            return torch.empty(weight.shape, dtype=own if weight.is_floating_point() else weight.dtype)

    _replace_weights(model, without_values)
    return model, shapes


def _line(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Numbers of mean 0 and a size that keeps activations in bounds; of mean 1 where they scale or shift.

    A stack of matrices starts each of its rows a row later, since products of stacks want rows that do not overlap.
    """
    strides = [1] * len(shape) if len(shape) < 3 else [*[shape[-1]] * (len(shape) - 1), 1]
    count = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    line = torch.randn(count, generator=generator)
    line = line * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.1 * line
    return line.as_strided(shape, strides)


def _replace_weights(model: Any, make: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Whatever a file holds by what ``make`` gives for its name and itself; what stands in several places stays one."""
    made: dict[int, torch.Tensor] = {}
    old = []  # kept alive, so that no two share an id
    for prefix, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for key, weight in held.items():
                if weight is None or key in module._non_persistent_buffers_set:
                    continue
                old.append(weight)
                if id(weight) not in made:
                    new = make(f"{prefix}.{key}" if prefix else key, weight)
                    is_weight = held is module._parameters
                    made[id(weight)] = torch.nn.Parameter(new, requires_grad=False) if is_weight else new
                held[key] = made[id(weight)]

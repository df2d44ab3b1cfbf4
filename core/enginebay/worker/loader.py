"""Loads a folder of safetensors into transformers' own module without a second copy of the weights in memory.

The module is built on the meta device, which holds no bytes, and its parameters are then replaced by tensors that map
the file: the kernel reads pages when they are used, and can drop them again. Only a tensor of another dtype than the
one asked for, or for another device, is copied, one at a time. No code of the model folder is ever run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.models import check_weights, one_line, weight_files
from enginebay.worker.buffers import recreate_buffers
from enginebay.worker.loader_build import build_on_meta, detail
from enginebay.worker.loader_checks import some
from enginebay.worker.loader_facts import count_weights, facts_of, find_places, read_weights
from enginebay.worker.loader_sources import WeightSource, Whole, WorldPart

__all__ = ["FolderWeights", "WeightSource", "Whole", "WorldPart", "load_causal_lm", "map_tensors", "torch_dtype"]


def torch_dtype(name: str) -> torch.dtype:
    """``"float32"``, ``"bfloat16"``, ``"float16"`` as torch's object."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ModelError(f"'{name}' is no dtype of torch; use float32, bfloat16 or float16")
    return dtype


def map_tensors(
    folder: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    passing: Callable[[str], bool] = lambda name: False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder's safetensors with its name, mapped from the file, not read.

    ``wanted``: the names to give. ``passing``: names of which the caller keeps nothing but copies: they are mapped
    apart, so that the pages which were read go with them. Raises ``ModelError`` when a file is missing, truncated or
    no safetensors.
    """
    from safetensors import SafetensorError, safe_open

    for path in weight_files(folder):
        try:
            with ExitStack() as opened:
                file = opened.enter_context(safe_open(path, framework="pt", device="cpu"))
                apart = None
                for name in file.keys():  # noqa: SIM118  # safe_open is no mapping: it cannot be iterated
                    if not wanted(name):
                        continue
                    if passing(name) and apart is None:
                        apart = opened.enter_context(safe_open(path, framework="pt", device="cpu"))
                    yield name, (apart if apart is not None and passing(name) else file).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path}: not a whole safetensors file ({error}); copy or convert the model again"
            ) from error


class FolderWeights:
    """The safetensors of a folder."""

    def __init__(self, folder: Path) -> None:
        self.place = folder

    def headers(self) -> Mapping[str, Mapping[str, Any]]:
        """See ``WeightSource``."""
        return check_weights(self.place)

    def tensors(
        self, wanted: Callable[[str], bool], passing: Callable[[str], bool]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See ``WeightSource``."""
        return map_tensors(self.place, wanted, passing)


def load_causal_lm(
    folder: Path,
    *,
    architecture: str,
    dtype: str,
    device: str,
    attention: str,
    part: WorldPart | None = None,
    weights: WeightSource | None = None,
) -> Any:
    """The model of ``folder`` as transformers' class ``architecture``: in eval mode, without gradients.

    ``attention`` is the name of a function registered in transformers' attention interface; ``part`` is what this rank
    loads of the model (None: all of it), ``weights`` is where they are if not in ``folder``, whose config.json it still
    is. Returns a ``transformers.PreTrainedModel``. Raises ``ModelError`` for a config that builds no model, and for
    weights that are missing, too many, or of another shape or type.
    """
    source = FolderWeights(folder) if weights is None else weights
    model = build_on_meta(folder, architecture, attention, count_weights(source))
    home, folder, wanted, target = folder, source.place, torch_dtype(dtype), torch.device(device)
    facts = facts_of(model, architecture, wanted)
    places = find_places(source, facts)
    part = part or Whole()
    part.prepare(model)
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    state = read_weights(source, facts, places, dtype=wanted, device=target, part=part, own=own)
    try:
        model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:  # what the headers do not show
        raise ModelError(f"{folder}: the weights do not fit config.json: {detail(error)}") from error
    state.clear()
    model.tie_weights()
    recreate_buffers(model, target, home)
    missing = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if missing:
        raise ModelError(
            one_line(f"{folder}: {len(missing)} weights that {architecture} needs are missing: {some(missing)}")
        )
    model.eval()
    model.requires_grad_(requires_grad=False)
    return model

"""Loads a folder of safetensors into transformers' own module without a second copy of the weights in memory.

The module is built on the meta device, which holds no bytes, and its parameters are then replaced by tensors that map
the file: the kernel reads pages when they are used, and can drop them again. Only a tensor of another dtype than the
one asked for, or for another device, is copied, one at a time. No code of the model folder is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

from enginebay.errors import ModelError
from enginebay.models import check_weights, one_line, weight_files
from enginebay.worker.buffers import recreate_buffers
from enginebay.worker.loader_build import build_on_meta, detail, kept_in_float32
from enginebay.worker.loader_checks import check_dtypes, check_shapes, drop_tied_copies, some
from enginebay.worker.names import ExpertStacks, Place, find_place

__all__ = ["FolderWeights", "WeightSource", "Whole", "WorldPart", "load_causal_lm", "map_tensors", "torch_dtype"]

_LEGACY_SUFFIXES = (
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)
"""Buffers that old checkpoints carry and that the module makes itself."""


class WorldPart(Protocol):
    """Which part of a model one rank loads; asked by ``load_causal_lm`` in the order of its methods."""

    def prepare(self, model: Any) -> None:
        """Make the model, which is whole and on the meta device, this rank's part. The file fits the whole one."""

    def keeps(self, name: str) -> bool:
        """Whether the rank has any of the module's weight ``name``."""

    def copies(self, place: Place) -> bool:
        """Whether the rank's part of it has to be a copy, since it is scattered over the whole."""

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """The part of a weight as the file has it. ``own_rows``: of an expert's stack, the rows of the whole one."""


class Whole:
    """The part of a rank that is alone: everything."""

    def prepare(self, model: Any) -> None:
        """Nothing to do."""

    def keeps(self, name: str) -> bool:
        """It does."""
        return True

    def copies(self, place: Place) -> bool:
        """It need not be."""
        return False

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """All of it."""
        return whole


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


class WeightSource(Protocol):
    """Where the weights are, under the names of the checkpoint. ``place`` is for messages."""

    place: Path

    def headers(self) -> Mapping[str, Mapping[str, Any]]:
        """Each tensor's ``dtype`` and ``shape``, as safetensors writes them. Raises ``ModelError``."""

    def tensors(
        self, wanted: Callable[[str], bool], passing: Callable[[str], bool]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, as ``map_tensors`` gives them."""


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
    weights that are
    missing, too many, or of another shape or type.
    """
    source = FolderWeights(folder) if weights is None else weights
    headers = {name: entry for name, entry in source.headers().items() if not name.endswith(_LEGACY_SUFFIXES)}
    model = build_on_meta(folder, architecture, attention, len(headers))
    home, folder = folder, source.place
    own = {name: tensor.shape for name, tensor in model.state_dict(keep_vars=True).items()}
    places = _find_places(model, own, headers)
    headers = {name: entry for name, entry in headers.items() if name in places}
    check_dtypes(folder, headers)
    check_shapes(folder, own, places, headers)
    if unexpected := sorted(name for name, place in places.items() if place is None):
        raise ModelError(
            one_line(f"{folder}: {len(unexpected)} weights have no place in {architecture}: {some(unexpected)}; ")
            + "config.json and the weights do not belong together"
        )
    target = torch.device(device)
    part = part or Whole()
    part.prepare(model)
    state = _read(source, model, own, places, part, torch_dtype(dtype), target)
    drop_tied_copies(model, state, folder)
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


def _find_places(model: Any, own: Mapping[str, torch.Size], names: Iterable[str]) -> dict[str, Place | None]:
    """Where each weight of the file goes, without those that the class says it has no use for; None: nowhere."""
    useless = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    places = {name: find_place(name, own, model.base_model_prefix) for name in names}
    return {
        name: place
        for name, place in places.items()
        if place is not None or not any(pattern.search(name) for pattern in useless)
    }


def _read(
    source: WeightSource,
    model: Any,
    own: Mapping[str, torch.Size],
    places: Mapping[str, Place | None],
    part: WorldPart,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The module's weights by its own names: mapped where they can stay as they are, stacked where they are merged."""
    kept = kept_in_float32(model, dtype)
    state: dict[str, torch.Tensor] = {}
    stacks = ExpertStacks()
    small = {name: tensor.shape for name, tensor in model.state_dict(keep_vars=True).items()}
    here = {name: place for name, place in places.items() if place is not None and part.keeps(place.name)}
    for name, whole in source.tensors(here.__contains__, lambda name: part.copies(here[name])):
        place = here[name]
        rows = own[place.name][1] if place.expert is not None else 0
        tensor = part.cut(place, whole, rows)
        del whole
        wanted = torch.float32 if kept is not None and kept.search(place.name) else dtype
        if place.expert is not None:
            stacks.put(place, tensor, small[place.name], wanted, device)
        else:
            if place.name in state:
                raise ModelError(_twice(source.place, name, place.name))
            # a no-op, hence still the mapped file, unless dtype or device differ
            state[place.name] = tensor.to(device=device, dtype=wanted if tensor.is_floating_point() else None)
    if lacking := stacks.missing():
        raise ModelError(
            one_line(f"{source.place}: {len(lacking)} stacks of experts are not whole: the file lacks {some(lacking)}")
        )
    return state | stacks.stacks


def _twice(folder: Path, name: str, place: str) -> str:
    return one_line(f"{folder}: {name} is {place} under another name, and the file has both; which of them counts?")

"""What a module says of its weights, as data, and a file's weights read by it: neither needs the module itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from msgspec import Struct

from enginebay.errors import ModelError
from enginebay.models import one_line
from enginebay.worker.loader_build import kept_in_float32
from enginebay.worker.loader_checks import check_dtypes, check_shapes, drop_tied_copies, some
from enginebay.worker.loader_sources import WeightSource, Whole, WorldPart
from enginebay.worker.names import ExpertStacks, Place, find_place

__all__ = ["ModelFacts", "count_weights", "facts_of", "find_places", "read_weights"]

_LEGACY_SUFFIXES = (
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)
"""Buffers that old checkpoints carry and that the module makes itself."""


class ModelFacts(Struct, frozen=True, kw_only=True):
    """What a module of class ``architecture`` says of its weights before it has any.

    ``shapes`` are those of the whole model, by the module's names; ``prefix`` is what stands before the names of the
    model below the head; ``float32`` are the weights that keep this dtype whatever is asked for, ``useless`` patterns
    of names that a file may have and the class has no use for; ``tied`` maps copies to the weights that they are.
    """

    architecture: str
    shapes: dict[str, tuple[int, ...]]
    prefix: str
    float32: tuple[str, ...] = ()
    useless: tuple[str, ...] = ()
    tied: dict[str, str] = {}


def facts_of(model: Any, architecture: str, dtype: torch.dtype) -> ModelFacts:
    """The facts of transformers' module, whole and on any device, for weights of this dtype."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    kept = kept_in_float32(model, dtype)
    tied = getattr(model, "_tied_weights_keys", None) or {}
    return ModelFacts(
        architecture=architecture,
        shapes=shapes,
        prefix=model.base_model_prefix,
        float32=() if kept is None else tuple(name for name in shapes if kept.search(name)),
        useless=tuple(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()),
        tied=dict(tied) if getattr(model.config, "tie_word_embeddings", False) else {},
    )


def count_weights(source: WeightSource) -> int:
    """How many tensors the source has that can be a module's."""
    return sum(not name.endswith(_LEGACY_SUFFIXES) for name in source.headers())


def find_places(source: WeightSource, facts: ModelFacts) -> dict[str, Place]:
    """Where each weight of the source goes, without those that the class has no use for.

    Raises ``ModelError`` for weights of another type or shape than the module's, and for those it has no place for.
    """
    headers = {name: entry for name, entry in source.headers().items() if not name.endswith(_LEGACY_SUFFIXES)}
    places = _places(headers, facts)
    headers = {name: entry for name, entry in headers.items() if name in places}
    check_dtypes(source.place, headers)
    check_shapes(source.place, facts.shapes, places, headers)
    if unexpected := sorted(name for name, place in places.items() if place is None):
        raise ModelError(
            one_line(
                f"{source.place}: {len(unexpected)} weights have no place in {facts.architecture}: {some(unexpected)}; "
            )
            + "config.json and the weights do not belong together"
        )
    return {name: place for name, place in places.items() if place is not None}


def _places(names: Iterable[str], facts: ModelFacts) -> dict[str, Place | None]:
    """None: nowhere."""
    useless = [re.compile(pattern) for pattern in facts.useless]
    places = {name: find_place(name, facts.shapes, facts.prefix) for name in names}
    return {
        name: place
        for name, place in places.items()
        if place is not None or not any(pattern.search(name) for pattern in useless)
    }


def read_weights(
    source: WeightSource,
    facts: ModelFacts,
    places: Mapping[str, Place],
    *,
    dtype: torch.dtype,
    device: torch.device,
    part: WorldPart | None = None,
    own: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, torch.Tensor]:
    """The module's weights by its own names: mapped where they can stay as they are, stacked where they are merged.

    ``part`` is what this rank loads (None: all), ``own`` the shapes of that (None: the whole model's). Raises
    ``ModelError`` for a weight that the source has twice, and for stacks of experts that are not whole.
    """
    part, own = part or Whole(), facts.shapes if own is None else own
    kept = frozenset(facts.float32)
    state: dict[str, torch.Tensor] = {}
    stacks = ExpertStacks()
    here = {name: place for name, place in places.items() if part.keeps(place.name)}
    for name, whole in source.tensors(here.__contains__, lambda name: part.copies(here[name])):
        place = here[name]
        rows = facts.shapes[place.name][1] if place.expert is not None else 0
        tensor = part.cut(place, whole, rows)
        del whole
        wanted = torch.float32 if place.name in kept else dtype
        if place.expert is not None:
            stacks.put(place, tensor, torch.Size(own[place.name]), wanted, device)
        else:
            if place.name in state:
                raise ModelError(_twice(source, name, place.name))
            # a no-op, hence still the mapped file, unless dtype or device differ
            state[place.name] = tensor.to(device=device, dtype=wanted if tensor.is_floating_point() else None)
    if lacking := stacks.missing():
        raise ModelError(
            one_line(f"{source.place}: {len(lacking)} stacks of experts are not whole: the file lacks {some(lacking)}")
        )
    state |= stacks.stacks
    drop_tied_copies(facts.tied, state, source.place)
    return state


def _twice(source: WeightSource, name: str, place: str) -> str:
    return one_line(
        f"{source.place}: {name} is {place} under another name, and the file has both; which of them counts?"
    )

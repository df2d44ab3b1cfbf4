"""What a file calls a weight, and what transformers' module calls it: they differ where modules were merged or renamed.

Renaming is by what the module has: a name that is a weight's own is never changed. Experts that the file holds one by
one are parts of one weight in the module, which is made here, a part at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

__all__ = ["ExpertStacks", "Place", "find_place"]

_RENAMED = tuple(
    (re.compile(old), new)
    for old, new in (
        (r"\.block_sparse_moe\.gate\.", ".mlp.gate."),
        (r"\.block_sparse_moe\.gate\.", ".mlp.router."),
        (r"\.block_sparse_moe\.experts\.", ".mlp.experts."),
        (r"\.block_sparse_moe\.input_linear\.weight$", ".block_sparse_moe.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.output_linear\.weight$", ".block_sparse_moe.experts.down_proj"),
        (r"\.block_sparse_moe\.router\.layer\.", ".block_sparse_moe.router."),
        (r"\.mlp\.moe_statics\.", ".mlp.gate.moe_statics."),
        (r"\.mlp\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
        (r"\.block_sparse_moe\.e_score_correction_bias$", ".mlp.e_score_correction_bias"),
        (r"^embed_out\.", "lm_head."),
    )
)
"""Old name → name in the module, of which the first that the module has is taken."""

_EXPERT = re.compile(r"^(?P<stack>.*\.experts)\.(?P<expert>\d+)\.(?P<part>\w+)\.weight$")
_PARTS = {
    "gate_proj": ("gate_up_proj", 0, 2),
    "w1": ("gate_up_proj", 0, 2),
    "up_proj": ("gate_up_proj", 1, 2),
    "w3": ("gate_up_proj", 1, 2),
    "down_proj": ("down_proj", 0, 1),
    "w2": ("down_proj", 0, 1),
}
"""An expert's weight in the file → the stacked weight, which share of its rows it is, and of how many."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight of the file goes: the module's ``name``, whole, or the rows of one ``expert`` of a stack."""

    name: str
    expert: int | None = None
    share: int = 0
    shares: int = 1

    def shape(self, own: tuple[int, ...]) -> list[int]:
        """What the file's weight must measure when the module's measures ``own``."""
        if self.expert is None:
            return list(own)
        return [own[1] // self.shares, *own[2:]]


def find_place(name: str, own: Mapping[str, tuple[int, ...]], prefix: str) -> Place | None:
    """The place of the file's weight ``name`` among the module's ``own`` (name → shape); None: it has none.

    ``prefix``: what transformers puts before the names of the model below the head; old files lack it.
    """
    names = [name, *(pattern.sub(new, name) for pattern, new in _RENAMED if pattern.search(name))]
    for candidate in [*names, *(f"{prefix}.{candidate}" for candidate in names)]:
        if candidate in own:
            return Place(candidate)
        if (match := _EXPERT.match(candidate)) and match["part"] in _PARTS:
            stacked, share, shares = _PARTS[match["part"]]
            stack, expert = f"{match['stack']}.{stacked}", int(match["expert"])
            if stack in own and expert < own[stack][0]:
                return Place(stack, expert, share, shares)
    return None


@dataclass(slots=True)
class ExpertStacks:
    """The stacked weights that are being made, and which parts of each the file has not given yet."""

    stacks: dict[str, torch.Tensor] = field(default_factory=dict)
    awaited: dict[str, set[tuple[int, int]]] = field(default_factory=dict)

    def put(self, place: Place, part: torch.Tensor, own: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        """Copy one expert's weight to its rows; the stack, of shape ``own``, is made with its first part."""
        assert place.expert is not None, "a whole weight is no part of a stack"
        if place.name not in self.stacks:
            self.stacks[place.name] = torch.empty(own, dtype=dtype, device=device)
            self.awaited[place.name] = {(expert, share) for expert in range(own[0]) for share in range(place.shares)}
        rows = own[1] // place.shares
        self.stacks[place.name][place.expert, place.share * rows : (place.share + 1) * rows].copy_(part)
        self.awaited[place.name].discard((place.expert, place.share))

    def missing(self) -> list[str]:
        """The begun stacks whose experts the file does not all have, each with the first expert that lacks a part."""
        return [f"{name}[{min(parts)[0]}]" for name, parts in self.awaited.items() if parts]

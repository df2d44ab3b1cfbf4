"""Splits a model's layers among tensor ranks: cuts its weights as they are read, and has its modules sum what is cut.

The modules stay transformers' own. What one rank computes of a layer is a part of a sum, or some of its columns; hooks
on the modules make it whole, so that between the blocks every rank has the same activations, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.worker.names import Place
from enginebay.worker.parallel.collectives import TensorGroup
from enginebay.worker.parallel.cuts import Cut
from enginebay.worker.parallel.plan import TensorPlan, make_plan
from enginebay.worker.parallel.shares import HeadShare
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["TensorSplit"]

Hook = Callable[..., Any]


class TensorSplit:
    """One rank's part of a model. Used by the loader (``prepare``, then ``cut``), then by the runner."""

    def __init__(self, group: TensorGroup) -> None:
        self.group = group
        self._plan: TensorPlan | None = None

    @property
    def plan(self) -> TensorPlan:
        """There is one after ``prepare``."""
        assert self._plan is not None
        return self._plan

    def prepare(self, model: Any) -> None:
        """Make the modules of a model on the meta device as small as this rank's part, and hook what is to be summed.

        Raises ``ModelError`` when the model cannot be split.
        """
        plan = self._plan = make_plan(model, self.group.rank, self.group.size)
        for name, cut in plan.cuts.items():
            _shrink(model, name, cut)
        if self.group.rank > 0:
            for name in plan.once:
                owner, _, own = name.rpartition(".")
                model.get_submodule(owner)._parameters[own] = None
        for name, shares in plan.heads.items():
            _fit_attention(model.get_submodule(name), shares[self.group.rank])
        if plan.embedding is not None:
            name, part = plan.embedding
            _look_up_own(model.get_submodule(name), part, self.group)
        for name, part in plan.fed.items():
            model.get_submodule(name).register_forward_pre_hook(_columns(part))
        for name in plan.summed:
            model.get_submodule(name).register_forward_hook(self._sum)
        for name, sizes in plan.joined.items():
            model.get_submodule(name).register_forward_hook(self._join(sizes))

    def keeps(self, name: str) -> bool:
        """Whether this rank has any of the module's weight ``name``."""
        return not (self.group.rank > 0 and name in self.plan.once)

    def copies(self, place: Place) -> bool:
        """Whether what is taken of this weight cannot stay where the file is mapped."""
        cut = self.plan.cuts.get(place.name)
        return cut is not None and (cut.dim != -2 or len(cut.ranges) > 1 or place.expert is not None)

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """This rank's part of a weight as the file has it; ``own_rows``: rows of all shares of an expert's stack."""
        cut = self.plan.cuts.get(place.name)
        if cut is None:
            return whole
        if place.expert is not None and cut.dim == -2:
            rows = own_rows // place.shares
            cut = cut.within(place.share * rows, (place.share + 1) * rows)
        return cut.take(whole)

    def check(self, shapes: tuple[LayerShape, ...], modules: list[str], hidden: torch.Tensor) -> None:
        """After the probe: each layer's heads are this rank's, and what leaves the layers is the same everywhere.

        ``modules``: names of the attention modules, by layer; ``hidden``: what left the last layer. Raises
        ``ModelError``.
        """
        for name, shape in zip(modules, shapes, strict=True):
            shares = self.plan.heads.get(name)
            if shares is not None:
                share = shares[self.group.rank]
                if (shape.heads, shape.kv_heads) != (len(share.queries), len(share.kv)):
                    raise ModelError(
                        f"{name} attends with {shape.heads} heads and {shape.kv_heads} KV heads on tensor rank "
                        f"{self.group.rank}, and its part has {len(share.queries)} and {len(share.kv)}"
                    )
        if not self.group.same_everywhere(hidden):
            raise ModelError(
                "what the layers compute differs between the tensor ranks: the model's plan in transformers misses a "
                "sum; set tensor_parallel_size = 1 in [parallel]"
            )

    def words(self) -> str:
        """The split in force, for people: "3+6 query heads, 1+2 KV heads"."""
        return self.plan.words()

    def _sum(self, _module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return self.group.reduce(output)

    def _join(self, sizes: tuple[int, ...]) -> Hook:
        return lambda _module, _args, output: self.group.gather(output, sizes)


def _shrink(model: Any, name: str, cut: Cut) -> None:
    owner_name, _, own = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    old = owner._parameters[own]
    owner._parameters[own] = torch.nn.Parameter(
        torch.empty(cut.shape(old.shape), dtype=old.dtype, device="meta"), requires_grad=False
    )
    if own != "weight":
        return
    rows, columns = owner._parameters[own].shape[:1], owner._parameters[own].shape[1:]
    if isinstance(owner, torch.nn.Linear):
        owner.out_features, owner.in_features = rows[0], columns[0]
    elif isinstance(owner, torch.nn.Embedding):
        owner.num_embeddings = rows[0]


def _fit_attention(module: Any, share: HeadShare) -> None:
    """The numbers of heads that attention modules keep of their config."""
    for names, count in (
        (("num_heads", "num_attention_heads"), len(share.queries)),
        (("num_key_value_heads",), len(share.kv)),
        (("num_key_value_groups",), len(share.queries) // len(share.kv)),
    ):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, count)


def _look_up_own(module: torch.nn.Embedding, part: range, group: TensorGroup) -> None:
    """Rows of other ranks are looked up as row 0 here, and are zero before the ranks' rows are summed."""
    module.padding_idx = None
    look_up = module.forward

    def forward(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # nn.Embedding's own name for it
        own = (input >= part.start) & (input < part.stop)
        found: torch.Tensor = look_up(torch.where(own, input - part.start, 0))
        return group.reduce(found.masked_fill(~own.unsqueeze(-1), 0))

    module.forward = forward  # type: ignore[method-assign]  # of this one alone; a subclass's scale is kept


def _columns(part: range) -> Hook:
    return lambda _module, args: (args[0][..., part.start : part.stop], *args[1:])

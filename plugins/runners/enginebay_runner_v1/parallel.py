"""This rank's part of the model and of every step, from its place and its groups: tensor ranks, stages, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.interfaces import NoOptions, RunnerContext
from enginebay.worker.names import Place
from enginebay.worker.parallel.collectives import Heard, PipelineGroup, TensorGroup, agreed
from enginebay_runner_v1.pipeline import PipelineStage
from enginebay_runner_v1.sharding import TensorSplit

__all__ = ["WorldShare"]


@dataclass(frozen=True, slots=True)
class Told:
    """The tokens that rows drew on the last stage, on their way."""

    heard: Heard
    counts: Sequence[int]

    def is_here(self) -> bool:
        """Whether reading them waits for nothing."""
        return self.heard.is_here()

    def token_ids(self) -> list[list[int]]:
        """Of each row; none where its logits were at fault."""
        ids: list[int] = self.heard.values().tolist()
        rows, begin = [], 0
        for count in self.counts:
            rows.append([token for token in ids[begin : begin + count] if token >= 0])
            begin += count
        return rows


class WorldShare:
    """What one rank of a world of several does; ``split`` and ``stage`` are None where there is one of them alone.

    A part for ``load_causal_lm``: stages are taken first, so that a layer of another stage is not looked at.
    """

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        place, world, groups = context.place, context.world, context.groups
        self._world = groups.world
        self._device = torch.device(context.device.name())
        self.split: TensorSplit | None = None
        self.stage: PipelineStage | None = None
        if world.tensor_parallel_size > 1:
            self.split = TensorSplit(
                TensorGroup(groups.tensor, place.tensor_rank, world.tensor_parallel_size, context.batch_invariant)
            )
        if world.pipeline_parallel_size > 1:
            self.stage = PipelineStage(
                PipelineGroup(groups.pipeline, place.pipeline_rank, world.pipeline_parallel_size)
            )

    def layers(self, model: Any) -> range:
        """The layers that this rank runs."""
        return range(int(model.config.num_hidden_layers)) if self.stage is None else self.stage.layers

    def windows(self, model: Any, own: Sequence[int | None]) -> list[int | None]:
        """The windows of all of the model's layers, each from the stage that has it; None: such a layer sees all."""
        if self.stage is None:
            return list(own)
        every = torch.zeros(int(model.config.num_hidden_layers), dtype=torch.int64, device=self._device)
        every[self.stage.layers.start : self.stage.layers.stop] = torch.tensor([window or 0 for window in own])
        return [window or None for window in self.stage.group.sum(every).tolist()]

    @property
    def answers(self) -> bool:
        """Whether logits are known here."""
        return self.stage is None or self.stage.is_last

    def prepare(self, model: Any) -> None:
        """See ``WorldPart``."""
        if self.split is not None:
            self.split.prepare(model)
        if self.stage is not None:
            self.stage.prepare(model)

    def keeps(self, name: str) -> bool:
        """See ``WorldPart``."""
        return all(part.keeps(name) for part in (self.split, self.stage) if part is not None)

    def copies(self, place: Place) -> bool:
        """See ``WorldPart``."""
        return self.split is not None and self.split.copies(place)

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """See ``WorldPart``."""
        return whole if self.split is None else self.split.cut(place, whole, own_rows)

    def run(self, model: Any, inputs: Mapping[str, Any], keep: torch.Tensor) -> torch.Tensor:
        """One forward: logits ``[1, len(keep), vocab]`` where they are known, else this stage's activations."""
        if self.stage is not None:
            return self.stage.run(model, inputs, keep)
        logits: torch.Tensor = model(**inputs, logits_to_keep=keep).logits
        return logits

    def tell(self, token_ids: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """Tell the other stages what was drawn: of each row up to as many tokens as ``counts`` says; none: a fault."""
        if self.stage is None or not counts:
            return
        padded = [[*ids, *[-1] * (count - len(ids))] for ids, count in zip(token_ids, counts, strict=True)]
        flat = torch.tensor([token for ids in padded for token in ids], dtype=torch.int64)
        self.stage.group.tell(flat.to(self._device))

    def hear(self, counts: Sequence[int]) -> Told:
        """What the last stage will tell of these rows, of which some draws: it is waited for when it is read."""
        assert self.stage is not None, "whoever answers has drawn it"
        ids = torch.empty((sum(counts),), dtype=torch.int64, device=self._device)
        return Told(self.stage.group.hear(ids), counts)

    def agreed(self) -> AbstractContextManager[None]:
        """Whatever is done within is done by every rank, or every rank fails; nobody waits for one that did."""
        return agreed(self._world, self._device)

    def words(self) -> dict[str, str]:
        """What is split how, for people."""
        words = {}
        if self.split is not None:
            words["tensor parallel"] = self.split.words()
        if self.stage is not None:
            first, last = self.stage.layers.start, self.stage.layers.stop - 1
            words["pipeline parallel"] = (
                f"stage {self.stage.group.stage + 1} of {self.stage.group.size}: layers {first} to {last}"
            )
        return words

    def check_split(self, model: Any, modules: list[Any], shapes: tuple[Any, ...], hidden: torch.Tensor | None) -> None:
        """After the probe; see ``TensorSplit.check``."""
        if self.split is None:
            return
        if hidden is None:
            raise ModelError(f"{type(model).__name__}: what leaves its layers was not seen")
        names = {module: name for name, module in model.named_modules()}
        self.split.check(shapes, [names[module] for module in modules], hidden)

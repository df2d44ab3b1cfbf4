"""Which part of the model's weights a rank reads: what the constants of its step are made of."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from enginebay.errors import GraphError
from enginebay.graph import Record
from enginebay.interfaces import Ranges
from enginebay.worker.loader_facts import ModelFacts
from enginebay.worker.loader_sources import Whole
from enginebay.worker.names import Place
from enginebay_runner_v2.passes.origins import cuts_of, own_part

__all__ = ["OwnWeights"]


class OwnWeights(Whole):
    """A ``WorldPart`` by the origins of these records. Rows stay where the file is mapped; columns are copied."""

    def __init__(self, records: Iterable[Record], facts: ModelFacts) -> None:
        """Raises ``GraphError`` for a weight of which two constants have other parts."""
        self._facts = facts
        self._cuts: dict[str, tuple[int, Ranges]] = {}
        for record in records:
            for constant in record.constants:
                for name, cut in cuts_of(record.origin(constant)).items():
                    if self._cuts.setdefault(name, cut)[1] != cut[1]:
                        raise GraphError(f"the graph has the weight {name!r} cut in two ways")
        for copy, weight in facts.tied.items():
            if weight in self._cuts:
                self._cuts[copy] = self._cuts[weight]

    def copies(self, place: Place) -> bool:
        """See ``WorldPart``."""
        dim, ranges = self._of(place.name)
        return bool(ranges) and (dim > 0 or len(ranges) > 1)

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """See ``WorldPart``."""
        return own_part(whole, *self._of(place.name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of this rank's part of the weight."""
        shape = [*self._facts.shapes[name]]
        dim, ranges = self._of(name)
        if ranges:
            shape[dim] = sum(end - begin for begin, end in ranges)
        return tuple(shape)

    def _of(self, name: str) -> tuple[int, Ranges]:
        return self._cuts.get(name, (0, ()))

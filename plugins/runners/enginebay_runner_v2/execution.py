"""Runs a record: as the Python code that it stands for, or as a ``Program``, the same calls with no Python between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from enginebay.graph import Record, dump_record, from_record
from enginebay_runner_v2.collectives import fault_of, groups_of

__all__ = ["CodePart", "NativePart", "Part"]


class Part(Protocol):
    """A record with its constants and caches, ready to run."""

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give, or replace, the tensors of these names; names that are none of the record's are passed over."""

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for these inputs: those of the record that are not bound, in its order."""


class CodePart:
    """The generated code, called as it is."""

    def __init__(self, record: Record) -> None:
        self._module = from_record(record)
        self._names = (*record.inputs, *record.constants)
        self._bound: dict[str, torch.Tensor] = {}

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See ``Part``."""
        self._bound |= {name: tensors[name] for name in self._names if name in tensors}

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See ``Part``."""
        given = iter(inputs)
        bound = self._bound
        return list(self._module(*(bound[name] if name in bound else next(given) for name in self._names)))


class NativePart:
    """The record in C++; the library that brings ``Program`` must be loaded."""

    def __init__(self, record: Record) -> None:
        self._program: Any = torch.classes.enginebay.Program(dump_record(record).decode())
        self._names = frozenset((*record.inputs, *record.constants))
        self._groups = groups_of(record)

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See ``Part``."""
        self._program.bind({name: tensor for name, tensor in tensors.items() if name in self._names})

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See ``Part``."""
        try:
            outputs: list[torch.Tensor] = self._program.run(list(inputs))
        except RuntimeError as error:
            if (fault := fault_of(self._groups)) is not None:
                raise fault from error
            raise
        return outputs

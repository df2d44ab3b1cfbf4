"""The collectives of a captured step: its operators find their group by a name, which the runner gives it for its life.

A graph says ``TENSOR`` where the ranks that share its layers are meant; whose they are is put in before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Protocol

import msgspec
from torch import Tensor

from enginebay.errors import WorkerFailed
from enginebay.graph import Record

__all__ = ["TENSOR", "Group", "all_gather", "all_reduce", "bound", "fault_of", "groups_of", "join", "leave"]

TENSOR = "tensor"
"""The group's name in a graph."""
_COLLECTIVES = ("enginebay::all_reduce", "enginebay::all_gather")
"""Operators whose last argument is a group's name."""


class Group(Protocol):
    """The ranks that share each layer; the core's ``TensorGroup`` is one."""

    def reduce(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors, the same bits on each; may be written into ``part``."""

    def gather(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """All ranks' tensors side by side in the last dimension; rank r's has ``sizes[r]`` columns."""


_groups: dict[str, Group] = {}
_faults: dict[str, WorkerFailed] = {}
_numbers = count()


def join(group: Group) -> str:
    """The name under which operators find this group until ``leave``."""
    name = f"{TENSOR}_{next(_numbers)}"
    _groups[name] = group
    return name


def leave(name: str) -> None:
    """Forget the group of this name."""
    _groups.pop(name, None)
    _faults.pop(name, None)


def all_reduce(x: Tensor, group: str) -> Tensor:
    """The sum of all ranks' ``x``."""
    try:
        return _group(group).reduce(x.clone())
    except WorkerFailed as error:
        _faults[group] = error
        raise


def all_gather(x: Tensor, sizes: Sequence[int], group: str) -> Tensor:
    """All ranks' ``x`` side by side."""
    try:
        return _group(group).gather(x, sizes)
    except WorkerFailed as error:
        _faults[group] = error
        raise


def _group(name: str) -> Group:
    if name not in _groups:
        raise RuntimeError(f"no group of ranks is named '{name}' here: a step of several ranks runs in their world")
    return _groups[name]


def bound(record: Record, name: str) -> Record:
    """The record with this group in the place of ``TENSOR``."""
    nodes = [
        msgspec.structs.replace(node, args=[*node.args[:-1], name]) if node.op in _COLLECTIVES else node
        for node in record.nodes
    ]
    return msgspec.structs.replace(record, nodes=nodes)


def groups_of(record: Record) -> frozenset[str]:
    """The names of the groups that the record's operators ask for."""
    return frozenset(_last(node.args) for node in record.nodes if node.op in _COLLECTIVES)


def _last(args: Sequence[Any]) -> str:
    return str(args[-1])


def fault_of(groups: Iterable[str]) -> WorkerFailed | None:
    """What ended the last collective of one of these, which C++ on the way has made another error of."""
    return next((_faults[name] for name in groups if name in _faults), None)

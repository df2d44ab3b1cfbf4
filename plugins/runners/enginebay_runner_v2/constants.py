"""The tensors of a record's constants: made from the model's weights by their origins, and packed for the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from enginebay.errors import ModelError, one_line
from enginebay.graph import Record
from enginebay.worker.loader_checks import some
from enginebay.worker.loader_facts import ModelFacts
from enginebay_runner_v2 import ops
from enginebay_runner_v2.cut import refs
from enginebay_runner_v2.own_weights import OwnWeights
from enginebay_runner_v2.passes.origins import constant_tensor, cuts_of, uncut
from enginebay_runner_v2.references import unpack_linear

__all__ = ["PlainConstants", "check_weights_are_there", "make_constants", "pack", "packed_names"]

_LINEARS = (f"{ops.NAMESPACE}::linear", f"{ops.NAMESPACE}::gated_linear")
_PACKED_DTYPES = (torch.float32, torch.bfloat16)


def make_constants(
    record: Record, state: Mapping[str, torch.Tensor], *, packed: bool, int8: bool = False
) -> dict[str, torch.Tensor]:
    """Every constant of the record, by its name there. ``state``: the weights by the module's names, as many as asked
    for (``check_weights_are_there``), of each this rank's part (``OwnWeights``). ``packed``: those that can be are
    packed, one by one, so that no second copy of all of them is ever there; ``int8``: in int8.
    """
    chosen = packed_names(record) if packed or int8 else frozenset()
    lay_out = torch.ops.enginebay.pack_linear_int8 if int8 else pack
    made = {}
    for name in record.constants:
        tensor = constant_tensor(uncut(record.origin(name)), state)
        made[name] = lay_out(tensor) if name in chosen else tensor
    return made


def pack(weight: torch.Tensor) -> torch.Tensor:
    """As the kernels read it fastest, if they read its dtype."""
    if weight.dtype not in _PACKED_DTYPES:
        return weight
    laid_out: torch.Tensor = torch.ops.enginebay.pack_linear(weight)
    return laid_out


def packed_names(record: Record) -> frozenset[str]:
    """The constants of which every use is as the weight of a product."""
    as_weight: set[str] = set()
    otherwise: set[str] = set()
    for node in record.nodes:
        used = list(refs(node))
        if node.op in _LINEARS and isinstance(node.args[1], dict):
            weight = node.args[1]["ref"]
            used.remove(weight)
            as_weight.add(weight)
        otherwise.update(used)
    return frozenset(as_weight.difference(otherwise).intersection(record.constants))


def check_weights_are_there(records: Iterable[Record], state: Mapping[str, torch.Tensor], facts: ModelFacts) -> None:
    """Raises ``ModelError`` when ``state`` lacks weights that the constants of these records are made of."""
    needed = {name for record in records for constant in record.constants for name in _names(record, constant)}
    if lacking := sorted(needed - state.keys()):
        raise ModelError(
            one_line(f"{len(lacking)} weights that {facts.architecture} needs are missing: {some(lacking)}")
        )


def _names(record: Record, constant: str) -> tuple[str, ...]:
    return tuple(cuts_of(record.origin(constant)))


class PlainConstants(Mapping[str, torch.Tensor]):
    """Constants by name as they were before they were packed; each is unpacked when it is asked for.

    Weights in int8 are given as they are: what was rounded away does not come back.
    """

    def __init__(self, record: Record, bound: Mapping[str, torch.Tensor], facts: ModelFacts, prefix: str) -> None:
        """``prefix`` stands before the names."""
        self._record, self._bound, self._prefix = record, bound, prefix
        self._own = OwnWeights([record], facts)

    def __getitem__(self, name: str) -> torch.Tensor:
        constant = name.removeprefix(self._prefix)
        tensor = self._bound[constant]
        shapes = [self._own.shape(part) for part in _names(self._record, constant)]
        if tensor.dim() == 1 and shapes and len(shapes[0]) == 2 and tensor.dtype != torch.int8:
            return unpack_linear(tensor, sum(shape[0] for shape in shapes), shapes[0][1])
        return tensor

    def __iter__(self) -> Iterator[str]:
        return (self._prefix + name for name in self._record.constants)

    def __len__(self) -> int:
        return len(self._record.constants)

"""One model's step, ready to run: body and head with their constants, and the cache that is bound to them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from enginebay.worker.answers import PromptEntries, prompt_entries
from enginebay.worker.sampling import Largest
from enginebay_runner_v2.constants import PlainConstants, check_weights_are_there, make_constants, pack, packed_names
from enginebay_runner_v2.execution import CodePart, NativePart, Part
from enginebay_runner_v2.pages import Pages
from enginebay_runner_v2.prepared import PreparedStep
from enginebay_runner_v2.rows import StepInputs
from enginebay_runner_v2.scored_head import scored_head

__all__ = ["Computed", "Step"]

Constants = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]
"""Of the body, and of the head."""


class Computed:
    """A step's body, done: what its head makes logits of."""

    def __init__(self, head: Part, hidden: list[torch.Tensor]) -> None:
        self._head, self._hidden = head, hidden

    def logits(self, rows: Sequence[int] | NDArray[np.int64]) -> torch.Tensor:
        """``[len(rows), vocab_size]`` of these tokens of the step."""
        return self._outputs(rows)[0]

    def scored(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[torch.Tensor, Largest]:
        """``logits``, and a ``Largest`` which knows theirs if the head has told."""
        logits, *known = self._outputs(rows)

        def largest(of: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ids, values = known if known and of is logits else torch.ops.enginebay.greedy(of)
            return ids, values

        return logits, largest

    def _outputs(self, rows: Sequence[int] | NDArray[np.int64]) -> list[torch.Tensor]:
        return self._head.run([torch.from_numpy(np.asarray(rows, dtype=np.int64)), *self._hidden])

    def prompt_entries(self, rows: Sequence[int], targets: Sequence[int], top: int) -> PromptEntries:
        """The log-probabilities of the ``targets`` at these tokens of the step, with the ``top`` likeliest ones."""
        return prompt_entries(self.logits, rows, targets, top)


class Step:
    """Both parts run as programs on packed weights (``native``: the kernels are loaded), or as Python code on plain."""

    def __init__(self, prepared: PreparedStep, constants: Constants, *, native: bool) -> None:
        """``constants``: see ``from_weights``, packed where ``native``."""
        make = NativePart if native else CodePart
        self.native = native
        self._prepared, self._constants = prepared, constants
        self._body, self._head = make(prepared.body), make(scored_head(prepared.head) if native else prepared.head)
        self._body.bind(constants[0])
        self._head.bind(constants[1])

    @classmethod
    def from_weights(
        cls, prepared: PreparedStep, state: Mapping[str, torch.Tensor], *, native: bool, int8: bool = False
    ) -> Step:
        """With these weights, by the module's names; ``int8``: those of products in int8, native or not.

        Raises ``ModelError`` where some are missing.
        """
        body, head = prepared.body, prepared.head
        check_weights_are_there((body, head), state, prepared.facts)
        of_body, of_head = (make_constants(part, state, packed=native, int8=int8) for part in (body, head))
        return cls(prepared, (of_body, of_head), native=native)

    def as_native(self) -> Step:
        """The same on packed weights; this one is of no use afterwards, so that no weight is there twice."""
        for record, constants in zip((self._prepared.body, self._prepared.head), self._constants, strict=True):
            for name in packed_names(record):
                constants[name] = pack(constants[name])
        return Step(self._prepared, self._constants, native=True)

    def plain_constants(self) -> Mapping[str, torch.Tensor]:
        """All constants under names of their own, not packed: what a peer can take, native or not."""
        prepared, (body, head) = self._prepared, self._constants
        return ChainMap(  # looked through from the last to the first, the names being different anyway
            PlainConstants(prepared.head, head, prepared.facts, "head."),  # type: ignore[arg-type]  # read only
            PlainConstants(prepared.body, body, prepared.facts, "body."),  # type: ignore[arg-type]  # read only
        )

    def bind_cache(self, pages: Pages) -> None:
        """The keys and values of each layer."""
        named: dict[str, torch.Tensor] = {}
        for layer, (keys, values) in enumerate(pages):
            named |= {f"key_cache_{layer}": keys, f"value_cache_{layer}": values}
        self._body.bind(named)

    def drop_cache(self) -> None:
        """Hold no page of the cache any more."""
        kept = self._prepared.shapes
        self.bind_cache(tuple((torch.empty(0), torch.empty(0)) for _ in kept))

    @torch.inference_mode()
    def compute(self, inputs: StepInputs) -> Computed:
        """Run the body: every token's key and value are in the cache afterwards."""
        return Computed(self._head, self._body.run([torch.from_numpy(array) for array in inputs.of_body()]))

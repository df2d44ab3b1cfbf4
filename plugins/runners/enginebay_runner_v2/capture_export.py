"""Exports one step of a module with ``torch.export``, attention being a marker that says of which layer it is.

The marker knows nothing of the cache, so that export sees token ids, positions and rows alone; ``capture_graph`` puts
paged attention in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.worker.loader_build import detail

__all__ = ["MARKER", "PREFIX", "export_step"]

PREFIX = "model."
"""What the module that is exported calls the model."""

_LIBRARY = torch.library.Library("enginebay_capture", "DEF")  # type: ignore[no-untyped-call]  # torch's own
"""Kept for the life of the process: the marker goes when it goes."""
_LIBRARY.define(  # type: ignore[no-untyped-call]  # torch's own
    "attention(Tensor query, Tensor key, Tensor value, int layer, float scale, float softcap, Tensor? sinks) -> Tensor"
)
MARKER = torch.ops.enginebay_capture.attention.default
"""Query ``[1, heads, T, D]``, key ``[1, kv_heads, T, D]``, value ``[1, kv_heads, T, V]`` → ``[1, T, heads, V]``."""
_TOKENS, _ROWS = 11, 7
"""Sizes at capture: two numbers that no model has as a width."""


@torch.library.register_fake("enginebay_capture::attention", lib=_LIBRARY)  # type: ignore[untyped-decorator]  # as above
def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    scale: float,
    softcap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))


@dataclass(frozen=True, slots=True)
class _Marking:
    """Bound on one attention module during capture."""

    layer: int

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Leave the marker in the graph. What the options may be the probe has looked at."""
        assert mask is None, "transformers built a mask of its own"
        scale, softcap = float(options["scaling"]), float(options.get("softcap") or 0.0)
        marked: torch.Tensor = MARKER(query, key, value, self.layer, scale, softcap, options.get("s_aux"))
        return marked


class _Step(torch.nn.Module):
    """The model over the tokens of one step, without a batch dimension outside."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits ``[S, vocab]``."""
        out = self.model(input_ids=input_ids[None], position_ids=positions[None], use_cache=False)
        logits: torch.Tensor = out.logits[0].index_select(0, rows)
        return logits


def export_step(model: Any, modules: Sequence[Any]) -> torch.export.ExportedProgram:
    """The exported step of ``model``, whose attention ``modules`` these are, by layer.

    Raises ``ModelError`` for a model that cannot be exported for any number of tokens.
    """
    for layer, module in enumerate(modules):
        module.eb = _Marking(layer)
    ids, positions, rows = (torch.zeros(size, dtype=torch.int64) for size in (_TOKENS, _TOKENS, _ROWS))
    sizes = {"input_ids": {0: torch.export.Dim("tokens", min=2)}, "rows": {0: torch.export.Dim("rows", min=2)}}
    sizes["positions"] = sizes["input_ids"]
    try:
        with torch.no_grad():
            return torch.export.export(_Step(model), (ids, positions, rows), dynamic_shapes=sizes, strict=False)
    except MemoryError:
        raise
    except Exception as error:  # export stops a stranger's code in ways of its own
        raise ModelError(f"{type(model).__name__} cannot be captured as a graph: {detail(error)}") from error
    finally:
        for module in modules:
            del module.eb

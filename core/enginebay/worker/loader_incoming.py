"""Weights on their way into a runner that has loaded others: from a folder, or as tensors that come in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from enginebay.errors import ModelError
from enginebay.worker.loader import FolderWeights
from enginebay.worker.loader_sources import GivenWeights, WeightSource

__all__ = ["IncomingWeights"]

_ROOM: Final = 4
"""So many times the weights may take as tensors: they may be given in a wider dtype, and tied ones twice."""


class IncomingWeights:
    """A weight update between its start and its end: a folder, or tensors that come in pieces."""

    def __init__(self, path: str, weight_bytes: int) -> None:
        """``weight_bytes``: what the weights take in the engine. Raises ``ModelError`` for a folder without readable
        weights."""
        self.source: WeightSource
        self._given: GivenWeights | None = None
        if path:
            self.source = FolderWeights(Path(path))
            self.source.headers()
        else:
            self.source = self._given = GivenWeights(_ROOM * weight_bytes)

    @property
    def given(self) -> GivenWeights:
        """Where pieces go. Raises ``ModelError`` when the weights come from a folder."""
        if self._given is None:
            raise ModelError("tensors came, and the update that was started reads them from a folder")
        return self._given

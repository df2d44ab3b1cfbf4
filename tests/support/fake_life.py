"""The half of the fake runner that sleeps and takes other weights: weights are one number, and an odd one shouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from enginebay.messages import FinishWeightUpdate, StartWeightUpdate, WeightsChunk

FAILING: dict[str, str] = {}
"""Methods that raise for now, with what they say; for engines in this process."""


def write_weights(folder: Path, number: float) -> Path:
    """A folder with other weights for the fake runner: nothing but the file."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": np.full(4, number, np.float32)}, folder / "model.safetensors")
    return folder


def read_weights(folder: Path) -> float:
    from safetensors.numpy import load_file

    return float(load_file(folder / "model.safetensors")["weight"][0])


class FakeLife:
    """What ``FakeRunner`` does beside steps. ``asked`` is what it was asked, in order."""

    context: Any

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.number: float | None = None
        self.cache = False
        self._coming: float | None = None

    def spoken(self, token: int) -> int:
        """The token as these weights say it."""
        assert self.cache, "a step without a KV cache"
        assert self.number is not None, "a step without weights"
        return token ^ 0x20 if self.number % 2 and chr(token).isalpha() else token

    def sleep(self, level: int) -> None:
        self._asked(f"sleep {level}")
        self.cache = False
        if level > 1:
            self.number = None

    def wake_up(self, tags: frozenset[str]) -> None:
        self._asked(f"wake_up {' '.join(sorted(tags))}")
        self.cache = self.cache or "kv_cache" in tags

    def start_weight_update(self, update: StartWeightUpdate) -> None:
        self._asked("start_weight_update")
        self._coming = read_weights(Path(update.path)) if update.path else None

    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        self._asked("update_weights_chunk")
        for piece in chunk.pieces:
            self._coming = float(np.frombuffer(piece.data, np.dtype(piece.dtype))[0])

    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        self._asked("finish_weight_update")
        if self._coming is None:
            raise ValueError("no weight came")
        self.number, self._coming = self._coming, None

    def abort_weight_update(self) -> None:
        self._asked("abort_weight_update")
        self._coming = None

    def _asked(self, what: str) -> None:
        self.asked.append(what)
        if (said := FAILING.get(what.partition(" ")[0])) is not None:
            raise ValueError(said)

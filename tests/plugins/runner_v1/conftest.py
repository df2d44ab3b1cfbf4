"""What tiny models answer in transformers, and as the runner loads them; one thread: a second one only waits here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.worker.loader import load_causal_lm
from enginebay_runner_v1.attention import ATTENTION, register
from support.parity import Reference


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reference_of(tiny: Callable[[str], Path]) -> Callable[[str], Reference]:
    """transformers on a family's tiny model, which answers each question once."""
    made: dict[str, Reference] = {}

    def reference(family: str) -> Reference:
        if family not in made:
            made[family] = Reference(tiny(family))
        return made[family]

    return reference


@pytest.fixture
def load(tiny: Callable[[str], Path]) -> Callable[[str, str], Any]:
    """A family's tiny model as the runner loads it, for a test to change."""

    def load_one(family: str, architecture: str) -> Any:
        register()
        return load_causal_lm(
            tiny(family), architecture=architecture, dtype="float32", device="cpu", attention=ATTENTION
        )

    return load_one

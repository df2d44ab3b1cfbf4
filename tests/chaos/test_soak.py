"""An engine whose workers are killed and stopped at random answers as one that is left alone, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos import WORLDS
from support.chaos_soak import NUMBERS, end_round, start_round

SHARES = {"mp": 14, "tensor": 4, "replicas": 12}
SECONDS = 240.0


@pytest.mark.timeout(300)
def test_thirty_faults_lose_nothing_and_change_nothing(tmp_path: Path) -> None:  # R1
    """``make chaos`` is the long form, with a real model."""
    logs = {world: tmp_path / f"{world}.log" for world in WORLDS}
    begun = {
        world: start_round(world, "fake", 0, SHARES[world], tmp_path / f"{world}.json", logs[world]) for world in WORLDS
    }
    told = [end_round(begun[world], logs[world], SECONDS) for world in WORLDS]
    sums = {name: sum(one[name] for one in told) for name in NUMBERS}
    wrong = {name: sums[name] for name in ("lost", "duplicated", "different", "leaks")}
    assert wrong == dict.fromkeys(wrong, 0), told
    assert sums["faults"] + sums["missed"] == 30
    assert sums["faults"] >= 25
    assert sums["requests"] >= 60

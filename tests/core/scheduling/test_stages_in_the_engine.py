"""The engine over a scheduler that shares requests out to pipeline stages: same texts, and masks wait as they must."""

from __future__ import annotations

import pytest

from enginebay.messages import FinishReason
from support.fake_engine import FEATURES, FakeEngine

SAID = {"a": "abcdefgh", "b": "klmnop", "c": "uvwxyz01", "d": "23"}


def engine_with(stages: int, *, constrained: tuple[str, ...]) -> FakeEngine:
    """A full queue, and requests of which these draw under a grammar."""
    engine = FakeEngine(depth=stages + 1, num_stages=stages, features=FEATURES, constrained=True)
    for name, text in SAID.items():
        more = {} if name in constrained else {"structured": None}
        engine.add(name, f"say:{text}", max_tokens=len(text), **more)
    return engine


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("constrained", [(), ("b",), ("a", "b", "c", "d")])
def test_the_texts_are_the_same(stages: int, constrained: tuple[str, ...]) -> None:  # E3
    engine = engine_with(stages, constrained=constrained)
    engine.run()
    assert engine.texts == SAID
    first = [set(step.num_scheduled_tokens) for step in engine.executor.steps[:2]]
    assert first == [{"a", "b"}, {"c", "d"}]
    assert engine.kv.num_free_blocks == 64


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("when", range(6))
def test_an_abort_while_every_stage_works(stages: int, when: int) -> None:  # S13, S14, E6
    engine = engine_with(stages, constrained=("a", "d"))
    for _ in range(when):
        engine.step()
    engine.core.abort(["a", "c"])
    engine.run()
    assert (engine.texts["b"], engine.texts["d"]) == (SAID["b"], SAID["d"])
    assert all(SAID[name].startswith(engine.texts[name]) for name in ("a", "c"))
    assert engine.last["a"].finish_reason is FinishReason.ABORT
    assert engine.kv.num_free_blocks == 64

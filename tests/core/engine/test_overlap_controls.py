"""Commands that come while steps are in flight: those that need quiet wait for it, others queue behind the steps."""

from __future__ import annotations

import pytest

from enginebay.errors import EngineBusy
from enginebay.messages import ReadStatus
from support.fake_engine import DEFAULT, FakeEngine


@pytest.mark.parametrize("depth", [2, 3])
def test_status_and_stats_between_steps_in_flight(depth: int) -> None:
    engine = FakeEngine(depth=depth)
    engine.add("a", max_tokens=6)
    engine.step()
    assert len(engine.core._pipeline.in_flight) == depth - 1
    assert engine.core.control(ReadStatus()).facts["unfinished"] == "1"
    assert engine.core.stats().committed_tokens == 1
    engine.run()
    assert engine.texts == {"a": DEFAULT[:6]}


@pytest.mark.parametrize("depth", [2, 3])
def test_what_needs_quiet_finds_work_as_long_as_a_step_is_in_flight(depth: int) -> None:  # E7
    engine = FakeEngine(depth=depth)
    engine.add("a", "say:ok")  # ends by eos: a step of it is in flight then
    while engine.core.num_unfinished:
        engine.step()
    assert engine.core._pipeline.in_flight
    assert engine.core.has_work()
    engine.run()
    assert not engine.core.has_work()
    assert not engine.core._pipeline.in_flight
    engine.add("b", max_tokens=3)
    engine.step()
    with pytest.raises(EngineBusy):
        engine.core._controls._check_idle("sleep")
    engine.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stop_with_steps_in_flight_ends_each_request_once(depth: int) -> None:
    engine = FakeEngine(depth=depth, constrained=True)
    engine.add("a", "say:abcdef", max_tokens=6)
    engine.add("b", "say:ghijkl", max_tokens=6)
    engine.step()
    engine.core.stop()
    assert sorted(one.request_id for one in engine.hooks.summaries) == ["a", "b"]
    assert not engine.core._pipeline.in_flight
    assert engine.hooks.stopped == 1

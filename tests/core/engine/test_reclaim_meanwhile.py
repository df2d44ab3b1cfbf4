"""While something of old workers is left: clients are served, other groups go on with requests, and a stop is heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enginebay.config import load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.roster import RECLAIMED
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.errors import EngineDead
from enginebay.messages import FinishReason, SamplingParams, Swap
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay_uni.executor import UniExecutor
from support.fake_engines import Installed


class Held:
    """A core whose old workers have a segment until ``done`` was called; ``seen`` is where they stood meanwhile."""

    def __init__(self, core: EngineCore) -> None:
        self.core, self.held = core, True
        self.seen: list[str] = []
        self.moved: list[str] = []
        self.served: Callable[[], None] = self.done
        core.parts.roster.reclaiming.remains = lambda: ("segment s",) if self.held else ()
        meanwhile = core._rebirth.meanwhile
        meanwhile.serve = self._serve
        meanwhile.move = self._move
        for name in "ab":
            core.add_request(
                Ask(request_id=name, prompt_token_ids=tuple(b"say:abcdef"), params=SamplingParams(max_tokens=6))
            )
        core.step()

    def done(self) -> None:
        self.held = False

    def kill(self) -> None:
        """Its worker ends with its thread."""
        executor = self.core.parts.executor
        assert isinstance(executor, UniExecutor)
        assert executor._session is not None
        executor._session._ours.send(b"not an envelope")

    def run(self) -> dict[str, FinishReason]:
        ends = {}
        while self.core.has_work():
            for output in self.core.step()[0]:
                if output.finish_reason is not None:
                    ends[output.request_id] = output.finish_reason
        return ends

    def _stands(self) -> str:
        (status,) = self.core.parts.roster.statuses()
        condition = status.condition(RECLAIMED)
        return f"{status.phase} {condition.reason if condition is not None else ''}".strip()

    def _serve(self, until: float) -> None:
        self.seen.append(self._stands())
        if self.held:
            self.served()

    def _move(self) -> None:
        self.moved.append(self._stands())


@pytest.fixture
def held(fake: Installed) -> Iterator[Held]:
    host, settings = PluginHost(), ("recovery.reclaim=5", "deadlines.stop=5")
    planned = plan(load(fake.config(), sets=settings, environ={}), host)
    core = start(planned, system_runtime(seed=0), host)
    yield Held(core)
    core.stop()


def test_clients_are_served_while_something_is_left(held: Held) -> None:  # R7
    def abort() -> None:
        held.core.abort(["b"])
        held.done()

    held.served = abort
    held.kill()
    assert held.run() == {"a": FinishReason.LENGTH, "b": FinishReason.ABORT}
    assert held.seen[0] == "Reclaiming Waiting"


def test_requests_may_go_while_something_is_left(held: Held) -> None:  # R1
    """Nobody could take them at the loss, and somebody can since: they do not wait for what an old worker holds."""
    held.kill()
    held.run()
    assert "Reclaiming Waiting" in held.moved


def test_a_stop_does_not_wait_for_what_is_left(held: Held) -> None:
    def stop() -> None:
        held.core.stop_by(held.core.runtime.clock.now() + 0.1)

    held.served = stop
    held.kill()
    with pytest.raises(EngineDead, match=r"the engine is closed"):
        held.run()
    assert held.seen == ["Reclaiming Waiting"]


def test_requests_may_go_before_workers_give_way_to_others(held: Held) -> None:  # R9
    """With a swap that has no room beside the old workers, these go first, and that may take its time."""
    swapped: Any = held.core.control(Swap(runner="fake", sets=("runner.options.announce=1",), exclusive=True))
    assert swapped.facts["generation"] == "1"
    assert held.moved[0] == "Ready", "before the workers are told to end"
    assert held.seen[0] == "Reclaiming Waiting"
    assert held.run() == {"a": FinishReason.LENGTH, "b": FinishReason.LENGTH}


def test_clients_are_served_while_others_have_their_place_already(held: Held) -> None:  # R9
    """With a swap that has room the new workers stand, and what is left of the old ones holds no client up."""

    def abort() -> None:
        if held.core.parts.generation.current == 1:
            held.core.abort(["b"])
            held.done()

    held.served = abort
    held.core.control(Swap(runner="fake", sets=("runner.options.announce=1",)))
    assert not held.held
    assert held.run() == {"a": FinishReason.LENGTH, "b": FinishReason.ABORT}


def test_a_stop_does_not_wait_for_what_others_have_left(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    held.served = lambda: held.core.stop_by(held.core.runtime.clock.now() + 0.1)
    held.core.control(Swap(runner="fake", sets=("runner.options.announce=1",)))
    assert caplog.messages[-1] == (
        "swap: the workers of before have ended, but not all is free: the engine is closed; make a new one"
    )
    assert held.seen[-1] == "Ready"

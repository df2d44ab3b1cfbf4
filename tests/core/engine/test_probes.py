"""What plugins know of a stopped worker's resources: asked until it is free, and never proof where they fail."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from enginebay.config import load
from enginebay.engine.probes import Probes
from enginebay.engine.roster import RECLAIMED
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.errors import WorkerLost
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Finding, Reclaim
from enginebay.messages import Phase, RestartWorkers, Truth, WorkerStatus
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from support.fake_engines import Installed
from support.status import status

FREE = Finding(what="queue pair", verdict=Reclaim.RECLAIMED)
HELD = Finding(what="queue pair", verdict=Reclaim.PENDING, reason="the card lists it")
HIDDEN = Finding(what="queue pair", verdict=Reclaim.UNKNOWN, reason="the card does not say")


class Extension:
    """The hook of extensions, over answers that a test gives; ``seen`` are those who were asked about."""

    def __init__(self, *answers: Finding, there: bool = True) -> None:
        self.answers, self.there = list(answers), there
        self.seen: list[WorkerStatus] = []

    def listeners(self, hook: str) -> Sequence[str]:
        return ("x",) if self.there and hook == "enginebay_probe_reclaim" else ()

    def probe_reclaim(self, worker: WorkerStatus) -> list[Finding]:
        self.seen.append(worker)
        return self.answers


@pytest.mark.parametrize("there", [False, True])
def test_what_both_kinds_say_is_put_together(there: bool) -> None:
    extension = Extension(HELD, there=there)
    probes = Probes(system_runtime(), extension)
    one = status()
    assert probes.findings(one) == ([HELD] if there else [])
    probes.record("pair 1", lambda: FREE)
    assert probes.findings(one) == [FREE, HELD], "once there is a thread for one of them, all are asked"
    probes.forget()
    assert probes.findings(one) == ([HELD] if there else [])
    assert extension.seen == [one] * (3 if there else 1)


def test_a_probe_that_fails_proves_nothing() -> None:
    def broken() -> Finding:
        raise OSError("no card\nhere")

    probes = Probes(system_runtime(), Extension(there=False))
    probes.record("pair 1", broken)
    probes.record("pair 2", lambda: True)  # type: ignore[arg-type,return-value]  # what a stranger may do
    assert probes.findings(status()) == [
        Finding(what="pair 1", verdict=Reclaim.UNKNOWN, reason="its probe raised OSError: no card here"),
        Finding(what="pair 2", verdict=Reclaim.UNKNOWN, reason="its probe returned a bool"),
    ]


def test_a_probe_that_hangs_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.engine.probes._PATIENCE", 0.05)
    over, asked = threading.Event(), threading.Event()

    def hangs() -> Finding:
        asked.set()
        assert over.wait(60)
        return FREE

    probes = Probes(system_runtime(), Extension(there=False))
    probes.record("pair 1", hangs)
    said = probes.findings(status())
    over.set()
    assert asked.wait(60)
    assert said == [
        Finding(what="probes of plugins", verdict=Reclaim.UNKNOWN, reason="they have not answered within 0.05 s")
    ]


class Card:
    """What an engine's executor or extension knows: ``says`` one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.says: list[Finding] = []
        self.asked: list[str] = []

    def answer(self, who: str) -> Finding:
        self.asked.append(who)
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    @hookimpl
    def enginebay_probe_reclaim(self, worker: WorkerStatus) -> list[Finding]:
        return [self.answer(f"{worker.slot.name} {worker.phase}")]


@pytest.mark.parametrize("who", ["executor", "extension"])
def test_new_workers_wait_until_it_is_free(fake: Installed, who: str) -> None:  # T14, T15
    card, host = Card(), PluginHost()
    if who == "extension":
        host._manager.register(card)
        host.hooks.refresh()
    config = load(fake.config(), sets=("status.sinks=[]",), environ={})
    core = start(plan(config, host), system_runtime(seed=0), host)

    def take() -> None:
        if who == "executor":
            core.parts.executor.context.record_resource("pair", "1", lambda: card.answer("pair 1"))

    try:
        take()
        card.says = [HELD, HELD, FREE]
        core.control(RestartWorkers())
        assert card.asked == (
            ["pair 1"] * 3
            if who == "executor"
            else [f"group-0/rank-0/cpu:0 {phase}" for phase in (Phase.TERMINATING, Phase.RECLAIMING, Phase.RECLAIMING)]
        )
        core.control(RestartWorkers())
        assert len(card.asked) == (3 if who == "executor" else 4), "what was recorded was of the workers before"
        take()
        card.says = [HIDDEN]
    finally:
        core.stop()
    [last] = core.parts.roster.statuses()
    condition = last.condition(RECLAIMED)
    assert condition is not None
    assert (condition.truth, condition.message) == (Truth.UNKNOWN, "the card does not say")


def test_what_is_never_free_is_the_end(fake: Installed) -> None:  # T14
    card, host = Card(), PluginHost()
    host._manager.register(card)
    host.hooks.refresh()
    sets = ("status.sinks=[]", "recovery.reclaim=0.1", "deadlines.stop=0.5")
    core = start(plan(load(fake.config(), sets=sets, environ={}), host), system_runtime(seed=0), host)
    card.says = [HELD]
    try:
        with pytest.raises(WorkerLost, match=r"is quarantined: .* queue pair: Pending \(the card lists it\)"):
            core.control(RestartWorkers())
    finally:
        core.stop()

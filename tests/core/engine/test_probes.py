"""What plugins know of a stopped worker's resources: asked until it is free, and never proof where they fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from enginebay.config import load
from enginebay.engine.probes import Probes
from enginebay.engine.roster import RECLAIMED
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.errors import WorkerLost, in_words
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Finding, Reclaim
from enginebay.messages import Phase, RestartWorkers, Truth, WorkerStatus
from enginebay.plugins import PluginHost
from enginebay.runtime import Thread, _SystemSpawner, system_runtime
from support.fake_engines import Installed
from support.status import status

FREE = Finding(what="queue pair", verdict=Reclaim.RECLAIMED)
HELD = Finding(what="queue pair", verdict=Reclaim.PENDING, reason="the card lists it")
HIDDEN = Finding(what="queue pair", verdict=Reclaim.UNKNOWN, reason="the card does not say")


class Extension:
    """The hook of extensions, over what a test has it return; ``seen`` are those who were asked about."""

    def __init__(self, said: object = None, *, there: bool = True) -> None:
        self.said, self.there = said, there
        self.seen: list[WorkerStatus] = []

    def probe_reclaim(self, worker: WorkerStatus) -> Mapping[str, Callable[[], object]]:
        return {"extension x": partial(self.ask, worker)} if self.there else {}

    def ask(self, worker: WorkerStatus) -> object:
        self.seen.append(worker)
        return self.said


def nobody_else() -> Extension:
    return Extension(there=False)


def unknown(what: str, why: str) -> Finding:
    return Finding(what=what, verdict=Reclaim.UNKNOWN, reason=why)


@pytest.mark.parametrize("there", [False, True])
def test_what_both_kinds_say_is_put_together(there: bool) -> None:
    extension = Extension([HELD], there=there)
    probes = Probes(system_runtime(), extension)
    one = status()
    assert probes.findings(one) == ([HELD] if there else [])
    probes.record("pair 1", lambda: FREE)
    assert probes.findings(one) == ([FREE, HELD] if there else [FREE])
    probes.forget()
    assert probes.findings(one) == ([HELD] if there else [])
    assert extension.seen == ([one] * 3 if there else [])


@pytest.mark.parametrize("error", [OSError("no card\nhere"), SystemExit(3), KeyboardInterrupt()])
def test_a_probe_that_fails_proves_nothing(error: BaseException) -> None:
    def broken() -> Finding:
        raise error

    probes = Probes(system_runtime(), nobody_else())
    probes.record("pair 1", broken)
    probes.record("pair 2", lambda: HELD)
    assert probes.findings(status()) == [unknown("pair 1", f"its probe raised {in_words(error)}"), HELD]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (None, []),
        (FREE, [FREE]),
        ((FREE, HELD), [FREE, HELD]),
        (
            [HELD, "free"],
            [HELD, unknown("extension x", "its probe returned a str, and must return a Finding")],
        ),
        (True, [unknown("extension x", "its probe returned a bool, and must return a Finding")]),
        (
            Finding(what="pair", verdict="gone"),  # type: ignore[arg-type]  # what a stranger may do
            [unknown("extension x", "its probe has the verdict 'gone', which is none")],
        ),
        (
            Finding(what=1, verdict="Unknown", reason=None),  # type: ignore[arg-type]  # what a stranger may do
            [unknown("1", "")],
        ),
        (
            Finding(what="pair", verdict=Reclaim.PENDING, reason="\x1b[31m" + "x" * 1000),
            [Finding(what="pair", verdict=Reclaim.PENDING, reason="?[31m" + "x" * 506 + "…")],
        ),
    ],
)
def test_what_is_said_is_told_as_findings(said: object, heard: list[Finding]) -> None:
    assert Probes(system_runtime(), Extension(said)).findings(status()) == heard


def test_a_probe_that_hangs_proves_nothing_and_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("enginebay.engine.probes._PATIENCE", 0.3)
    over, asked = threading.Event(), []

    def hangs() -> Finding:
        asked.append(1)
        assert over.wait(60)
        return FREE

    probes = Probes(system_runtime(), Extension([HELD]))
    probes.record("pair 1", hangs)
    probes.record("pair 2", lambda: HELD)
    try:
        assert probes.findings(status()) == [unknown("pair 1", "it has not answered within 0.3 s"), HELD, HELD]
        again = [unknown("pair 1", "it has not answered yet what it was asked before"), HELD, HELD]
        assert probes.findings(status()) == again
    finally:
        over.set()
    assert asked == [1], "who hangs is not asked again"
    late = "the executor (pair 1), asked what a stopped worker holds: it has not answered within 0.3 s"
    assert caplog.messages == [late]


def test_what_is_wrong_with_a_probe_is_said_once_for_each_kind_of_fault(caplog: pytest.LogCaptureFixture) -> None:
    saying: list[object] = ["free", "free", None, OSError("no card"), OSError("still none"), FREE, ValueError("x")]

    class Broken(Extension):
        def ask(self, worker: WorkerStatus) -> object:
            said = saying.pop(0)
            if isinstance(said, Exception):
                raise said
            return said

    told = set[tuple[str, str]]()
    while saying:
        Probes(system_runtime(), Broken(), told).findings(status())  # of any group, and after any swap
    asked = "extension x, asked what a stopped worker holds: its probe"
    assert caplog.messages == [
        f"{asked} returned a str, and must return a Finding",
        f"{asked} raised OSError: no card",
        f"{asked} raised ValueError: x",
    ]


def test_one_that_cannot_be_asked_proves_nothing() -> None:
    class Spawner(_SystemSpawner):
        def thread(self, name: str, target: Callable[[], None]) -> Thread:
            raise RuntimeError("can't start new thread")

    probes = Probes(replace(system_runtime(), spawner=Spawner()), nobody_else())
    probes.record("pair 1", lambda: FREE)
    assert probes.findings(status()) == [
        unknown("pair 1", "it could not be asked: RuntimeError: can't start new thread")
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


def test_what_is_never_free_is_the_end(fake: Installed, caplog: pytest.LogCaptureFixture) -> None:  # T14
    """It is said once, by the error, and not waited for once more."""
    card, host = Card(), PluginHost()
    host._manager.register(card)
    host.hooks.refresh()
    sets = ("status.sinks=[]", "recovery.reclaim=0.1", "deadlines.stop=60")
    core = start(plan(load(fake.config(), sets=sets, environ={}), host), system_runtime(seed=0), host)
    card.says = [HELD]
    try:
        with pytest.raises(WorkerLost, match=r"is quarantined: .* queue pair: Pending \(the card lists it\)"):
            core.control(RestartWorkers())
        num_asked = len(card.asked)
    finally:
        core.stop()
    assert len(card.asked) == num_asked
    assert "quarantined" not in caplog.text


def test_a_stop_that_something_holds_says_what_it_is(fake: Installed, caplog: pytest.LogCaptureFixture) -> None:
    card, host = Card(), PluginHost()
    host._manager.register(card)
    host.hooks.refresh()
    sets = ("status.sinks=[]", "deadlines.stop=0.2")
    core = start(plan(load(fake.config(), sets=sets, environ={}), host), system_runtime(seed=0), host)
    card.says = [HELD]
    core.stop()
    (said,) = caplog.messages
    assert re.fullmatch(
        r"group-0/rank-0/cpu:0 is quarantined: what its last worker had taken is not free after 0\.\d+ s: "
        r"queue pair: Pending \(the card lists it\)",
        said,
    )

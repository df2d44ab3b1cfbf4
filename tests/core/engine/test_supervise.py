"""What an engine's groups share: the budget of restarts as the config has it, and sinks that are told of each life."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from enginebay import LLM
from enginebay.config import RecoveryConfig
from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.errors import StartFailed, WorkerLost
from enginebay.messages import Phase, WorldPlan
from enginebay.status.restarts import GiveUp, Restart, RestartRules
from enginebay.status.sinks.sqlite import read_history
from support.clock import FakeClock, fake_runtime
from support.fake_engines import Installed

LIFE = ["Pending", "Starting", "InitDevice", "Loading", "Warmup", "Ready", "Terminating", "Reclaiming"]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("enginebay-status-")]


def phases(path: Path) -> list[str]:
    return [row.phase for row in read_history(path)]


def test_the_sink_is_told_of_a_life_from_its_beginning_to_its_end(fake: Installed, tmp_path: Path) -> None:
    path = tmp_path / "status.sqlite3"
    with LLM(fake.config(), sets=[f"status.sqlite.path={path}"]) as llm:
        assert len(threads()) == 1
        llm.generate("say:hi")
    assert threads() == []
    told = phases(path)
    assert [LIFE.index(phase) for phase in told[:-1]] == sorted(LIFE.index(phase) for phase in told[:-1])
    assert told[-1] == "Succeeded"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM slots").fetchone() == (0,)


def test_a_start_that_fails_is_told_of_and_leaves_no_thread(fake: Installed, tmp_path: Path) -> None:
    path = tmp_path / "status.sqlite3"
    with pytest.raises(StartFailed, match="asked to fail in load_model"):
        LLM(fake.config(fail="load_model"), sets=[f"status.sqlite.path={path}"])
    assert threads() == []
    (*before, last) = read_history(path)
    assert "Ready" not in [row.phase for row in before]
    assert (last.phase, last.reason) == ("Failed", "Lost")
    assert "asked to fail in load_model" in last.message


def test_groups_have_one_supervision(fake: Installed, tmp_path: Path) -> None:
    path = tmp_path / "status.sqlite3"
    with LLM(fake.config(), sets=[f"status.sqlite.path={path}", "parallel.data_parallel_size=2"]) as llm:
        assert len(threads()) == 1
        assert [one.slot.group for one in llm.health().workers] == [0, 1]
    assert threads() == []
    assert phases(path).count("Succeeded") == 2


def test_without_a_state_folder_an_engine_starts_all_the_same(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ENGINEBAY_STATE", "/proc/no/such")
    with LLM(fake.config()) as llm:
        assert llm.generate("say:hi")[0].text == "hi"
        assert llm.health().workers[0].incarnation.epoch > 1_700_000_000
    assert "the state folder /proc/no/such cannot be used" in caplog.text


def test_the_rules_are_those_of_the_config_and_their_defaults_are_the_same() -> None:
    asked, rules = RecoveryConfig(), RestartRules()
    assert (rules.per_slot, rules.per_engine) == (asked.max_restarts, asked.max_restarts_in_all)
    assert (rules.window, rules.good_run) == (asked.window, asked.good_run)
    assert (rules.failed_starts, rules.longest_wait) == (asked.failed_starts, asked.longest_wait)


def test_the_config_is_in_force(fake: Installed) -> None:
    sets = ["recovery.max_restarts=1", "recovery.longest_wait=0"]
    with LLM(fake.config(), sets=sets) as llm:
        roster = llm._front.client._cores[0]._parts.roster
        verdicts = [type(roster.lost(WorkerLost("gone"))) for _ in range(2)]
    assert verdicts == [Restart, GiveUp]


def test_the_budget_of_all_groups_is_one() -> None:
    runtime = fake_runtime(FakeClock())
    supervision = Supervision(runtime, {}, rules=RestartRules(per_slot=9, per_engine=3))
    rosters = [
        Roster(supervision, slots_of(WorldPlan(data_parallel_index=group), "cpu"), runtime.entropy)
        for group in range(2)
    ]
    verdicts = []
    for turn in range(4):
        rosters[turn % 2].renew(turn)
        rosters[turn % 2].enter(Phase.READY)
        verdicts.append(type(rosters[turn % 2].lost(WorkerLost("gone"))))
    assert verdicts == [Restart, Restart, Restart, GiveUp]

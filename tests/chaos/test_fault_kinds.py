"""Each kind of fault on real worker processes: what the engine does about it, and that nothing is left."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, EnginebayError, SamplingParams
from enginebay.errors import ConfigError
from support.census import Census
from support.declared import declare
from support.fake_engine import answer_of, fake_config, fake_model_folder
from support.repository import ROOT

PROMPTS = ["one", "two", "say:three"]
PARAMS = SamplingParams(max_tokens=40)
EXPECTED = [answer_of(prompt.encode(), 40) for prompt in PROMPTS]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The fake runner in a worker process, with the worker's half of the faults in it."""
    site = declare(tmp_path / "site", {"enginebay.runners": {"fake": "support.fake_engine"}})
    monkeypatch.syspath_prepend(str(site))
    path = os.pathsep.join([str(site), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    return fake_config(fake_model_folder(tmp_path / "model"), step_seconds=0.002) | {
        "executor": {"use": "mp"},
        "worker": {"extensions": ["faults"]},
        "deadlines": {"heartbeat": 0.2, "step": 2.0},
    }


@pytest.fixture
def census() -> Iterator[Census]:
    """What was there before."""
    census = Census()
    yield census
    census.check()


def with_faults(config: dict[str, Any], *faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    return config | {"extensions": {"faults": {"script": faults}}} | more


def said_of_faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "enginebay.faults"]


def generations(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "generation " in message]


def run(config: dict[str, Any]) -> None:
    with LLM(config=config) as llm:
        assert [answer.text for answer in llm.generate(PROMPTS, PARAMS)] == EXPECTED


def test_what_a_living_worker_does_wrong_changes_no_answer(
    config: dict[str, Any], census: Census, caplog: pytest.LogCaptureFixture
) -> None:
    """Those kinds after which the same worker goes on: its failed steps are void."""
    faults = [
        {"kind": "slow", "after_calls": 2, "seconds": 0.01},
        {"kind": "delay_reply", "after_calls": 4, "seconds": 0.1},
        {"kind": "fill_shm", "after_calls": 6, "seconds": 0.2, "bytes": 1 << 20},
        {"kind": "stop", "after_calls": 8, "seconds": 0.1},
        {"kind": "fail", "after_calls": 12},
        {"kind": "exhaust_memory", "after_calls": 18, "bytes": 1 << 20},
    ]
    with caplog.at_level(logging.WARNING):
        run(with_faults(config, *faults))
    assert sorted(line.split(": ")[1] for line in said_of_faults(caplog)) == [
        "delay_reply rank 0 (execute_model by 0.1 s)",
        "exhaust_memory rank 0",
        "fail rank 0 (execute_model)",
        "fill_shm (1048576 bytes for 0.2 s)",
        "slow rank 0 (0.01 s each step)",
        "stop rank 0 (for 0.1 s)",
    ]
    failed, exhausted = generations(caplog)
    assert "InjectedFault: the extension 'faults' fails this call" in failed
    assert "the extension 'faults' has taken" in exhausted
    assert not [line for line in (failed, exhausted) if "with new workers" in line]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"kind": "kill"}, "was killed (signal 9, SIGKILL)"),
        ({"kind": "stop", "seconds": 0}, "(its process is stopped): no sign of life for 3 x [deadlines] heartbeat"),
        ({"kind": "drop_reply"}, "within 2 s ([deadlines] step)"),
    ],
)
def test_a_worker_that_is_lost_is_replaced_and_changes_no_answer(
    config: dict[str, Any], census: Census, caplog: pytest.LogCaptureFixture, fault: dict[str, Any], why: str
) -> None:
    with caplog.at_level(logging.WARNING):
        run(with_faults(config, fault | {"after_calls": 10}))
    assert len(said_of_faults(caplog)) == 1
    lost, over = generations(caplog)
    assert lost.startswith("the workers of generation 0 are lost, void: ")
    assert why in lost
    assert over.startswith("generation 1 begins with new workers, ")


def test_a_worker_in_the_engines_own_process_is_not_harmed(config: dict[str, Any], census: Census) -> None:
    inside = with_faults(config, {"kind": "kill", "after_calls": 1}, executor={"use": "uni"})
    with pytest.raises(ConfigError, match=r"and rank 0 runs in the engine's process: take the kinds kill, stop and"):
        LLM(config=inside)


def test_a_fault_in_the_start_is_the_starts_error(config: dict[str, Any], census: Census) -> None:
    """Before there are workers to go back to, what goes wrong is told to whoever starts the engine."""
    failing = with_faults(config, {"kind": "fail", "after_calls": 3})
    failing["extensions"]["faults"]["call"] = "any"
    with pytest.raises(EnginebayError, match="failed in load_model: InjectedFault: the extension 'faults' fails this"):
        LLM(config=failing)

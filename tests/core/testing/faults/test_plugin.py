"""What ``faults`` says before anything starts, what it refuses, and that nothing loads it by accident."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enginebay.config import load
from enginebay.engine.startup.plan import plan
from enginebay.errors import ConfigError
from enginebay.plugins import PluginHost
from enginebay.testing.faults import FaultOptions
from enginebay.testing.faults.plugin import Faults, in_words
from support.declared import declare
from support.fake_engine import fake_config, fake_model_folder

ONE = {"kind": "fail", "after_calls": 3}


@pytest.fixture
def in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``check`` prints of a config with these sections."""
    site = declare(tmp_path / "site", {"enginebay.runners": {"fake": "support.fake_engine"}})
    monkeypatch.syspath_prepend(str(site))
    model = fake_model_folder(tmp_path / "model")

    def told(**sections: Any) -> dict[str, tuple[str, str]]:
        resolved = load(fake_config(model) | sections, environ={})
        return {one.name: (one.value, one.why) for one in plan(resolved, PluginHost()).in_force}

    return told


def test_one_line_says_that_faults_are_on(in_force: Any) -> None:
    told = in_force(extensions={"faults": {"script": [ONE], "random": {"seed": 7, "rate": 0.5, "limit": 9}}})
    assert told["faults"] == (
        "ON: fail rank 0 of replica 0 with call 3; random kill, stop: 0.5 per second, seed 7, at most 9",
        "this engine harms itself on purpose; without [extensions.faults] it does not",
    )
    assert "extension 'faults' (enginebay 0.1.0)" in told["executor wrapped by"][0]


def test_without_its_section_it_is_not_there(in_force: Any) -> None:
    assert not [name for name in in_force() if "fault" in name]


def test_without_a_fault_it_wraps_nothing(in_force: Any) -> None:
    assert in_force(extensions={"faults": {}})["faults"] == ("none", "neither script nor random is set")
    inner: Any = object()
    assert Faults(FaultOptions()).enginebay_wrap_executor(inner, inner) is None


@pytest.mark.parametrize(
    ("options", "sections", "said"),
    [
        (
            {"script": [ONE, ONE | {"rank": 2}]},
            {},
            "[extensions.faults] script.1: there is no rank 2: [parallel] makes 1, and the first is 0",
        ),
        (
            {"script": [ONE | {"replica": 1}]},
            {},
            "[extensions.faults] script.0: there is no replica 1: [parallel] makes 1, and the first is 0",
        ),
        (
            {"random": {"seed": 1, "rate": 1, "kinds": ["slow", "exhaust_memory"]}},
            {},
            (
                "[extensions.faults] has the kind exhaust_memory, which is done inside workers: "
                'add "faults" to [worker] extensions'
            ),
        ),
        (
            {"script": [ONE | {"call": "any"}]},
            {},
            (
                "the config given in code: extension 'faults' rejects [extensions.faults]: "
                "script.0: a fault of the script has no 'call' (it stands beside the script). "
                "It has: after_calls, after_seconds, bytes, kind, rank, replica, "
                "seconds. Known options: call, random, script"
            ),
        ),
        (
            {"script": [ONE, {"kind": "kill", "after_call": 3}]},
            {},
            (
                "the config given in code: extension 'faults' rejects [extensions.faults]: "
                "script.1: a fault of the script has no 'after_call'. Did you mean 'after_calls'? "
                "It has: after_calls, after_seconds, bytes, kind, rank, "
                "replica, seconds. Known options: call, random, script"
            ),
        ),
    ],
)
def test_what_could_not_happen_is_refused(in_force: Any, options: Any, sections: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        in_force(extensions={"faults": options}, **sections)
    assert str(caught.value) == said


def test_faults_inside_workers_are_taken_with_the_worker_extension(in_force: Any) -> None:
    slow = {"script": [ONE | {"kind": "slow"}]}
    told = in_force(extensions={"faults": slow}, worker={"extensions": ["faults"]})
    assert told["worker extension faults"][0] == "loaded"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"script": [{"kind": "stop", "rank": 1, "after_seconds": 2.5}]}, "stop rank 1 of replica 0 after 2.5 s"),
        ({"random": {"seed": 3, "rate": 2, "per": "call", "kinds": ["kill"]}}, "random kill: 2 per call, seed 3"),
        ({}, ""),
    ],
)
def test_the_options_in_words(options: Any, words: str) -> None:
    assert in_words(FaultOptions.model_validate(options)) == words


def test_its_modules_bring_nothing_that_tests_need() -> None:
    code = (
        "import sys, enginebay.testing.faults.plugin, enginebay.testing.faults.executor\n"
        "import enginebay.testing.faults.in_worker\n"
        "print(sorted({'pytest', 'hypothesis', 'torch', 'zmq', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"

"""``enginebay swap``, ``scale`` and ``restart``: what they ask of a running engine, and what they say."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from enginebay.cli import _connect, group
from enginebay.errors import CapabilityError, ConfigError, EngineBusy, PluginNotFound
from enginebay.messages import Sleep
from support.fake_engines import ENGINEBAY, Installed
from support.served import Serving, serve


@pytest.fixture
def serving(fake: Installed) -> Iterator[Serving]:
    with serve(fake.config()) as serving:
        yield serving


def said(*arguments: str) -> Result:
    return CliRunner().invoke(group, list(arguments))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is quick."""
    monkeypatch.setattr(_connect, "SLOW_AFTER", 0.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is, on a busy machine too."""
    monkeypatch.setattr(_connect, "SLOW_AFTER", 60.0)


def test_a_swap_says_what_is_in_force_now(serving: Serving, slow: None) -> None:  # R9
    done = said("swap", "scheduler=priority", "--address", serving.address)
    assert (done.exit_code, done.stdout) == (0, "  scheduler   priority\n  generation  1\n")
    assert serving.front.in_force["scheduler"] == "priority"
    done = said("swap", "--set", "runner.options.announce=2", "--exclusive", "--address", serving.address)
    assert (done.exit_code, done.stdout) == (0, "  generation  2\n")
    assert done.stderr == "starting other workers: this takes as long as a start\n"
    done = said("swap", "scheduler=priority", "--address", serving.address)
    assert (done.stdout, done.stderr) == ("", "nothing has changed: that is in force already\n")
    done = said("status", serving.address)
    assert "scheduler 'priority' " in done.stdout


def test_a_swap_that_is_refused(serving: Serving) -> None:
    assert isinstance(said("swap", "scheduler=nope", "--address", serving.address).exception, PluginNotFound)
    done = said("swap", "model=other")
    assert done.exit_code == 2
    assert "'model=other' is none of scheduler=NAME, runner=NAME, executor=NAME" in done.stderr
    done = said("swap", serving.address)
    assert done.exit_code == 2
    assert "name what to change: scheduler=NAME, runner=NAME, executor=NAME, --set KEY=VALUE" in done.stderr


@pytest.mark.parametrize("key", ["cache.num_blocks=5", "model.path=x", "scheduler.use=fair"])
def test_a_key_that_no_swap_changes_ends_with_2(serving: Serving, key: str) -> None:
    refused = said("swap", "--set", key, serving.address).exception
    assert isinstance(refused, ConfigError)
    assert refused.exit_code == 2
    assert key.partition("=")[0] in str(refused)


def test_what_cannot_be_now_ends_with_1(serving: Serving, quick: None) -> None:
    """The same may be asked again, and there is nothing to mend."""
    serving.front.client.control(Sleep(level=1)).result(60)
    for command in (["swap", "runner.options.announce=2"], ["restart"]):
        sets = ["--set"] if command[0] == "swap" else []
        busy = said(command[0], *sets, *command[1:], serving.address).exception
        assert isinstance(busy, EngineBusy)
        assert busy.exit_code == 1


def test_a_swap_takes_the_address_as_the_other_commands_do(serving: Serving) -> None:
    done = said("swap", serving.address, "scheduler=priority")
    assert (done.exit_code, done.stdout) == (0, "  scheduler   priority\n  generation  1\n")
    done = said("swap", "scheduler=priority", serving.address, "--address", "ipc:///other")
    assert done.exit_code == 2
    assert f"there is one ADDRESS, and not 'ipc:///other' and '{serving.address}'" in done.stderr


def test_scale(serving: Serving, quick: None) -> None:
    done = said("scale", "--tensor-parallel", "2", serving.address)
    assert isinstance(done.exception, CapabilityError)
    assert "executor 'uni' runs one worker" in str(done.exception)
    assert done.stderr == ""  # nothing was started
    done = said("scale", serving.address)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        2,
        "Error: name a size: --tensor-parallel N, --pipeline-parallel N, --data-parallel N",
    )


def test_restart(serving: Serving, slow: None) -> None:
    done = said("restart", "--rolling", serving.address)
    said_of_it = "starting the workers anew: this takes as long as a start\nthe workers were started anew\n"
    assert (done.exit_code, done.stderr) == (0, said_of_it)
    assert serving.front.client.stats().unfinished == 0
    assert said("restart", serving.address).exit_code == 0


def test_ctrl_c_is_how_watching_ends(serving: Serving) -> None:
    """Nothing is said of stopping: the engine goes on."""
    watching = subprocess.Popen(
        [*ENGINEBAY, "status", "--watch", serving.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    assert watching.stdout.readline()  # it looks
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (0, "")

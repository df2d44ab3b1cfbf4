"""``enginebay swap``, ``scale`` and ``restart``: what they ask of a running engine, and what they say."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from enginebay.cli import group
from enginebay.errors import CapabilityError, InvalidRequest, PluginNotFound
from support.fake_engines import ENGINEBAY, Installed
from support.served import Serving, serve


@pytest.fixture
def serving(fake: Installed) -> Iterator[Serving]:
    with serve(fake.config()) as serving:
        yield serving


def said(*arguments: str) -> Result:
    return CliRunner().invoke(group, list(arguments))


def test_a_swap_says_what_is_in_force_now(serving: Serving) -> None:  # R9
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
    refused = said("swap", "--set", "model.path=x", "--address", serving.address).exception
    assert isinstance(refused, InvalidRequest)
    done = said("swap", "model=other")
    assert done.exit_code == 2
    assert "'model=other' is none of scheduler=NAME, runner=NAME, executor=NAME" in done.stderr


def test_scale(serving: Serving) -> None:
    refused = said("scale", "--tensor-parallel", "2", serving.address).exception
    assert isinstance(refused, CapabilityError)
    assert "executor 'uni' runs one worker" in str(refused)
    done = said("scale", serving.address)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        2,
        "Error: name a size: --tensor-parallel N, --pipeline-parallel N, --data-parallel N",
    )


def test_restart(serving: Serving) -> None:
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

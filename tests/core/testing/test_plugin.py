"""The options of the kit: a name that cannot be loaded is one error for the whole run, whatever its kind."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.testing import plugin
from support.fake_dist import FakeSite, fake_site


def configured(monkeypatch: pytest.MonkeyPatch, **names: str) -> Any:
    """What pytest's options with these names lead to."""
    monkeypatch.setattr(plugin, "_chosen", {})
    given = {f"--{kind}": [names[kind]] if kind in names else [] for kind in plugin.KINDS}
    plugin.pytest_configure(SimpleNamespace(getoption=given.get))  # type: ignore[arg-type]  # all that is asked
    return plugin.chosen


@pytest.mark.parametrize("kind", plugin.KINDS)
def test_a_misspelt_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noun = kind.replace("-", " ")
    with pytest.raises(
        pytest.UsageError, match=f"^--{kind} nosuch: No {noun} named 'nosuch' is installed. Installed: "
    ):
        configured(monkeypatch, **{kind: "nosuch"})


def test_names_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = configured(monkeypatch, scheduler="fcfs", executor="uni")
    assert [chosen(kind) for kind in plugin.KINDS] == [["uni"], [], ["fcfs"], []]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "--status-options: not JSON: Expecting property name"),
        ("[]", "--status-options: must be a JSON object, such as "),
        (
            '{"file": "x"}',
            "--status-sink sqlite: the conformance suite: status sink 'sqlite' rejects [status.sqlite]: ",
        ),
    ],
)
def test_options_of_a_status_sink_that_are_none(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_chosen", {})
    monkeypatch.setattr(plugin, "_sink_options", {})
    given = {f"--{kind}": [] for kind in plugin.KINDS} | {"--status-sink": ["sqlite"], "--status-options": text}
    with pytest.raises(pytest.UsageError, match=f"^{re.escape(said)}"):
        plugin.pytest_configure(SimpleNamespace(getoption=given.get))  # type: ignore[arg-type]  # all that is asked


def test_options_of_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are good reach its suite; one that is wrong is an error of the whole run, as a name is."""
    monkeypatch.setattr(plugin, "_chosen", {})
    monkeypatch.setattr(plugin, "_scheduler_options", {})
    given = {f"--{kind}": [] for kind in plugin.KINDS} | {"--scheduler": ["fair"]}
    config: Any = SimpleNamespace(getoption={**given, "--scheduler-options": '{"weights": {"gold": 2.0}}'}.get)
    plugin.pytest_configure(config)
    suite = import_module("enginebay.testing.suite")
    sys.modules.pop("enginebay.testing.suite")  # what is chosen next is another choice
    assert suite.TestScheduler_fair.options == {"weights": {"gold": 2.0}}
    config = SimpleNamespace(getoption={**given, "--scheduler-options": '{"waits": 1}'}.get)
    with pytest.raises(pytest.UsageError, match=r"^--scheduler fair: .*rejects \[scheduler\.options\]: waits: unknown"):
        plugin.pytest_configure(config)
    config = SimpleNamespace(getoption={**given, "--scheduler-options": "1"}.get)
    with pytest.raises(pytest.UsageError, match=r"^--scheduler-options: must be a JSON object, such as "):
        plugin.pytest_configure(config)


def test_one_that_is_broken(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for site in fake_site(tmp_path, monkeypatch):
        assert isinstance(site, FakeSite)
        site.plugin("schedulers", "bad", "raise RuntimeError('gone')")
        with pytest.raises(pytest.UsageError, match=r"^--scheduler bad: scheduler 'bad' of bad-pkg 1\.0 is broken: "):
            configured(monkeypatch, scheduler="bad")


def test_the_whole_run_says_it_once() -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "enginebay.testing.plugin"]
    words += ["--pyargs", "enginebay.testing.suite", "--scheduler", "fcsf"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4
    assert done.stdout.strip() == ""
    assert done.stderr.strip().startswith(
        "ERROR: --scheduler fcsf: No scheduler named 'fcsf' is installed. Did you mean"
    )
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_kit_knows_by_the_descriptor_whether_records_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that keeps them in itself is tested by name without the tests that it cannot pass."""
    monkeypatch.setattr(plugin, "_chosen", {"status-sink": ["memory", "sqlite"]})
    suite = import_module("enginebay.testing.suite")
    sys.modules.pop("enginebay.testing.suite")  # what is chosen next is another choice
    [memory, sqlite] = [getattr(suite, f"TestStatusSink_{name}") for name in ("memory", "sqlite")]
    assert (memory.lasting, sqlite.lasting) == (False, True)
    assert memory.test_another_sink_sees_what_was_written is None
    assert callable(sqlite.test_another_sink_sees_what_was_written)

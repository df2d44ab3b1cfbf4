"""The options of the kit: a name that cannot be loaded is one error for the whole run, whatever its kind."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.testing import plugin
from support.fake_dist import FakeSite, fake_site


def configured(monkeypatch: pytest.MonkeyPatch, **names: str) -> Any:
    """What pytest's options with these names lead to."""
    monkeypatch.setattr(plugin, "_chosen", {})
    given = {f"--{kind}": [names[kind]] if kind in names else [] for kind in plugin.KINDS}
    plugin.pytest_configure(SimpleNamespace(getoption=given.__getitem__))  # type: ignore[arg-type]  # all that is asked
    return plugin.chosen


@pytest.mark.parametrize("kind", plugin.KINDS)
def test_a_misspelt_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        pytest.UsageError, match=f"^--{kind} nosuch: No {kind} named 'nosuch' is installed. Installed: "
    ):
        configured(monkeypatch, **{kind: "nosuch"})


def test_names_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = configured(monkeypatch, scheduler="fcfs", executor="uni")
    assert [chosen(kind) for kind in plugin.KINDS] == [["uni"], [], ["fcfs"]]


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

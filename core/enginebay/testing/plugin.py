"""The pytest plugin of the conformance kit: options that name the installed parts to test.

``pytest -p enginebay.testing.plugin --pyargs enginebay.testing.suite --scheduler NAME``
"""

from __future__ import annotations

import pytest

from enginebay.errors import EnginebayError
from enginebay.plugins import PluginHost

KINDS = ("executor", "runner", "scheduler")


_chosen: dict[str, list[str]] = {}


def chosen(kind: str) -> list[str]:
    """The names given for this kind of part on pytest's command line."""
    return _chosen.get(kind, [])


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option per kind; each can be given several times."""
    group = parser.getgroup("enginebay", "enginebay conformance")
    for kind in KINDS:
        group.addoption(
            f"--{kind}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"the installed {kind} that enginebay.testing.suite tests",
        )
    group.addoption("--model", metavar="FOLDER", help="the folder of a small model, for the runner's suite")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the names for the suite, which is imported later; one that cannot be loaded ends the run, with one error."""
    host = PluginHost()
    load = {"executor": host.load_executor, "runner": host.load_runner, "scheduler": host.load_scheduler}
    for kind in KINDS:
        _chosen[kind] = list(config.getoption(f"--{kind}"))
        for name in _chosen[kind]:
            try:
                load[kind](name, {}, "the conformance suite")
            except EnginebayError as error:
                raise pytest.UsageError(f"--{kind} {name}: {error}") from None

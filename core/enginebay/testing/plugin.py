"""The pytest plugin of the conformance kit: options that name the installed parts to test.

``pytest -p enginebay.testing.plugin --pyargs enginebay.testing.suite --scheduler NAME``
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from enginebay.errors import EnginebayError
from enginebay.plugins import PluginHost

KINDS = ("executor", "runner", "scheduler", "status-sink")


_chosen: dict[str, list[str]] = {}
_scheduler_options: dict[str, Any] = {}
_sink_options: dict[str, Any] = {}


def chosen(kind: str) -> list[str]:
    """The names given for this kind of part on pytest's command line."""
    return _chosen.get(kind, [])


def scheduler_options() -> dict[str, Any]:
    """The options given for the scheduler."""
    return dict(_scheduler_options)


def sink_options() -> dict[str, Any]:
    """The options given for the status sink."""
    return dict(_sink_options)


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option per kind; each can be given several times."""
    group = parser.getgroup("enginebay", "enginebay conformance")
    for kind in KINDS:
        group.addoption(
            f"--{kind}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"the installed {kind.replace('-', ' ')} that enginebay.testing.suite tests",
        )
    group.addoption("--model", metavar="FOLDER", help="the folder of a small model, for the runner's suite")
    group.addoption(
        "--scheduler-options", metavar="JSON", help="what stands in [scheduler.options], for the scheduler's suite"
    )
    group.addoption(
        "--status-options", metavar="JSON", help="what stands in [status.NAME], for the status sink's suite"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the names for the suite, which is imported later; one that cannot be loaded ends the run, with one error."""
    host, source = PluginHost(), "the conformance suite"
    for option, kept in (("--scheduler-options", _scheduler_options), ("--status-options", _sink_options)):
        kept.clear()
        kept.update(_table(option, config.getoption(option)))
    load: dict[str, Callable[[str], object]] = {
        "executor": lambda name: host.load_executor(name, {}, source),
        "runner": lambda name: host.load_runner(name, {}, source),
        "scheduler": lambda name: host.load_scheduler(name, _scheduler_options, source),
        "status-sink": lambda name: host.load_status_sinks([name], {name: _sink_options}, source),
    }
    for kind in KINDS:
        _chosen[kind] = list(config.getoption(f"--{kind}"))
        for name in _chosen[kind]:
            try:
                load[kind](name)
            except EnginebayError as error:
                raise pytest.UsageError(f"--{kind} {name}: {error}") from None


def _table(option: str, text: str | None) -> dict[str, Any]:
    try:
        table = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise pytest.UsageError(f"{option}: not JSON: {error}") from None
    if not isinstance(table, dict):
        raise pytest.UsageError(f'{option}: must be a JSON object, such as {{"name": 1.5}}')
    return table

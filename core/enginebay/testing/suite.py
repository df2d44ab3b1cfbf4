"""The whole kit on installed parts by name; what to test comes from the options of ``enginebay.testing.plugin``."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.plugins import PluginHost
from enginebay.testing import ExecutorSuite, RunnerSuite, SchedulerSuite, StatusSinkSuite
from enginebay.testing.plugin import chosen, scheduler_options, sink_options

_SUITES = {
    "executor": ExecutorSuite,
    "runner": RunnerSuite,
    "scheduler": SchedulerSuite,
    "status-sink": StatusSinkSuite,
}

if not any(chosen(kind) for kind in _SUITES):
    raise pytest.UsageError(
        "the conformance kit has nothing to test: name an installed part with --executor, --runner, --scheduler or "
        "--status-sink, and load the options with -p enginebay.testing.plugin"
    )


def _more(kind: str, name: str) -> dict[str, object]:
    """What a suite is told beside the name."""
    if kind == "status-sink":
        [loaded] = PluginHost().load_status_sinks([name], {name: sink_options()})
        return {"options": sink_options(), "lasting": loaded.plugin.lasting}
    if kind == "scheduler":
        return {"options": scheduler_options()}
    return _worlds(name) if kind == "executor" else {}


def _worlds(name: str) -> dict[str, object]:
    """The sizes of world that an executor says it can have, where one process speaks to all of it."""
    capabilities = PluginHost().load_executor(name, {}).plugin.capabilities
    alone = capabilities.every_rank_schedules or capabilities.max_world_size == 1
    return {"world_sizes": (1,) if alone else (1, 2)}


for _kind, _suite in _SUITES.items():
    for _name in chosen(_kind):
        _class = f"Test{_kind.title().replace('-', '')}_{_name}"
        _members: dict[str, Any] = {"name": _name, "__module__": __name__}
        globals()[_class] = type(_class, (_suite,), _members | _more(_kind, _name))

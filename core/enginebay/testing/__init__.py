"""The conformance kit that plugin authors run: one suite per kind, and the simulated core under a scheduler.

Subclass a suite in your own tests, or run all of it on an installed plugin by name::

    pytest -p enginebay.testing.plugin --pyargs enginebay.testing.suite --scheduler NAME

Names are imported when they are first used: workers and engines load fakes and faults from here, and have no pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enginebay.testing._executor_suite import ExecutorSuite
    from enginebay.testing._loads import Load, enliven, make_limits, make_request, random_load
    from enginebay.testing._loop import CoreLoop
    from enginebay.testing._runner_driver import RunnerDriver
    from enginebay.testing._runner_start import StartedRunner, start_runner
    from enginebay.testing._runner_suite import RunnerSuite
    from enginebay.testing._scheduler_suite import SchedulerSuite
    from enginebay.testing._sim import guess
    from enginebay.testing._status_sink_suite import StatusSinkSuite

_HOMES = {
    "CoreLoop": "_loop",
    "ExecutorSuite": "_executor_suite",
    "Load": "_loads",
    "RunnerDriver": "_runner_driver",
    "RunnerSuite": "_runner_suite",
    "SchedulerSuite": "_scheduler_suite",
    "StartedRunner": "_runner_start",
    "StatusSinkSuite": "_status_sink_suite",
    "enliven": "_loads",
    "guess": "_sim",
    "make_limits": "_loads",
    "make_request": "_loads",
    "random_load": "_loads",
    "start_runner": "_runner_start",
}

__all__ = [
    "CoreLoop",
    "ExecutorSuite",
    "Load",
    "RunnerDriver",
    "RunnerSuite",
    "SchedulerSuite",
    "StartedRunner",
    "StatusSinkSuite",
    "enliven",
    "guess",
    "make_limits",
    "make_request",
    "random_load",
    "start_runner",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'enginebay.testing' has no attribute {name!r}")
    return getattr(import_module(f"enginebay.testing.{_HOMES[name]}"), name)

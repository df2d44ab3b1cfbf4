"""The conformance kit that plugin authors run: one suite per kind, and the simulated core under a scheduler.

Subclass a suite in your own tests, or run all of it on an installed plugin by name::

    pytest -p enginebay.testing.plugin --pyargs enginebay.testing.suite --scheduler NAME
"""

from enginebay.testing._executor_suite import ExecutorSuite
from enginebay.testing._loads import Load, enliven, make_limits, make_request, random_load
from enginebay.testing._loop import CoreLoop
from enginebay.testing._runner_driver import RunnerDriver
from enginebay.testing._runner_start import StartedRunner, start_runner
from enginebay.testing._runner_suite import RunnerSuite
from enginebay.testing._scheduler_suite import SchedulerSuite
from enginebay.testing._sim import guess

__all__ = [
    "CoreLoop",
    "ExecutorSuite",
    "Load",
    "RunnerDriver",
    "RunnerSuite",
    "SchedulerSuite",
    "StartedRunner",
    "enliven",
    "guess",
    "make_limits",
    "make_request",
    "random_load",
    "start_runner",
]

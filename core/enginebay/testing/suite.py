"""The whole kit on installed parts by name; what to test comes from the options of ``enginebay.testing.plugin``."""

from __future__ import annotations

import pytest

from enginebay.testing import ExecutorSuite, RunnerSuite, SchedulerSuite
from enginebay.testing.plugin import chosen

_SUITES = {"executor": ExecutorSuite, "runner": RunnerSuite, "scheduler": SchedulerSuite}

if not any(chosen(kind) for kind in _SUITES):
    raise pytest.UsageError(
        "the conformance kit has nothing to test: name an installed part with --executor, --runner or --scheduler, "
        "and load the options with -p enginebay.testing.plugin"
    )

for _kind, _suite in _SUITES.items():
    for _name in chosen(_kind):
        _class = f"Test{_kind.capitalize()}_{_name}"
        globals()[_class] = type(_class, (_suite,), {"name": _name, "__module__": __name__})

"""The kit of executors passes on one that is wrapped, as long as no fault comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from enginebay.interfaces import Kind
from enginebay.testing import ExecutorSuite
from enginebay.testing._offer import offer

OFFERED = """
from dataclasses import replace
import {module} as original
from enginebay.hookspecs import hookimpl
from enginebay.testing.faults import FaultOptions
from enginebay.testing.faults.executor import FaultyExecutor

LATER = FaultOptions.model_validate({{"script": [{{"kind": "{kind}", "after_calls": 10**9}}]}})

def wrapping(factory):
    return lambda context: FaultyExecutor(factory(context), LATER)

@hookimpl
def enginebay_register_executors():
    offered = original.enginebay_register_executors()
    return [replace(one, name="{new}", factory=wrapping(one.factory)) for one in offered if one.name == "{old}"]
"""


class Wrapping(ExecutorSuite):
    """What an executor keeps, of one that is wrapped."""

    wraps: ClassVar[dict[str, str]]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        site = tmp_path_factory.mktemp("site")
        (site / f"{cls.name}_executor.py").write_text(OFFERED.format(new=cls.name, **cls.wraps))
        with pytest.MonkeyPatch.context() as monkeypatch:
            offer(site, monkeypatch, Kind.EXECUTOR, cls.name, f"{cls.name}_executor")
            yield


class TestThreads(Wrapping):
    """In threads of this process, whose answers alone can be harmed."""

    name = "faulty"
    patience = 30.0
    wraps: ClassVar = {"module": "support.threads_executor", "old": "threads", "kind": "fail"}


@pytest.mark.soak
class TestProcesses(Wrapping):
    """In processes of their own."""

    name = "faulty_mp"
    wraps: ClassVar = {"module": "enginebay_mp.plugin", "old": "mp", "kind": "kill"}

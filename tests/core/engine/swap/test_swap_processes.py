"""An exchange with workers in processes of their own: those of before are gone, and nothing of theirs is left."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from enginebay.errors import EnginebayError
from enginebay.messages import Phase, RestartWorkers, Swap
from support.fake_engines import Installed
from support.swaps import Driven


def test_workers_of_other_processes_take_over(
    make: Callable[..., Driven], fake: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:  # R9
    monkeypatch.setenv("PYTHONPATH", fake.environ()["PYTHONPATH"])
    engine = make("recovery.max_restarts=0")
    engine.add_load()
    pids = []
    for command in (Swap(executor="mp"), RestartWorkers(), Swap(scheduler="priority")):
        engine.step()
        engine.step()
        engine.do(command)
        [status] = engine.core.parts.roster.statuses()
        assert status.phase is Phase.READY
        pids.append(status.incarnation.pid)
    assert engine.names() == ["priority", "fake", "mp"]
    engine.step()
    with pytest.raises(EnginebayError, match=r"what was in force before goes on$"):
        engine.do(Swap(runner="fake", sets=("runner.options.fail=warm_up",)))
    assert len({os.getpid(), *pids}) == 3, "the last exchange touched no worker"
    assert not _runs(pids[0]), "it was restarted"
    assert _runs(pids[1])
    engine.do(Swap(executor="uni"))
    assert not _runs(pids[1])
    engine.run()
    assert engine.told() == Driven.undisturbed(make)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

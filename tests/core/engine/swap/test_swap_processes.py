"""An exchange with workers in processes of their own: those of before are gone, and nothing of theirs is left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from enginebay import LLM
from enginebay.errors import EnginebayError, EngineDead
from enginebay.messages import Phase, RestartWorkers, Swap, WorkerStatus
from support.fake_engines import Installed
from support.llms import core_of, threads
from support.swaps import Driven

_LONG_STOP = 60
"""[deadlines] stop, which nobody may need who ends workers that load."""


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


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("method", ["load_model", "warm_up"])
def test_an_engine_that_is_closed_waits_for_no_load(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, method: str, exclusive: bool
) -> None:
    """However long the new workers would take: they, those of before and all threads are gone at once."""
    monkeypatch.setenv("PYTHONPATH", fake.environ()["PYTHONPATH"])
    llm = LLM(fake.config(), sets=("executor.use=mp", f"deadlines.stop={_LONG_STOP}", "recovery.max_restarts=0"))
    ended: list[BaseException] = []

    def swap() -> None:
        try:
            llm.swap(runner="fake", sets=(f"runner.options.hold={method}",), exclusive=exclusive)
        except BaseException as error:
            ended.append(error)

    pids = {one.incarnation.pid for one in llm.health().workers}
    swapping = threading.Thread(target=swap)
    swapping.start()
    newcomers = [one for one in _until_two_lives(llm) if one.incarnation.pid not in pids]
    closing = threading.Thread(target=llm.close)
    closing.start()
    closing.join(_LONG_STOP / 3)
    assert not closing.is_alive(), threads()
    swapping.join(_LONG_STOP)
    assert [type(error) for error in ended] == [EngineDead]
    assert str(ended[0]) == "the engine is closed; make a new one"
    assert not any(_runs(pid) for pid in (*pids, *(one.incarnation.pid for one in newcomers)))
    assert not threads()


def _until_two_lives(llm: LLM) -> list[WorkerStatus]:
    """The workers in the book once those of the second life say HELLO."""
    book = core_of(llm).parts.roster._book
    until = time.monotonic() + _LONG_STOP
    while True:
        found = [entry.status for entry in book.entries()]
        if any(one.incarnation.pid and one.incarnation.generation for one in found):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

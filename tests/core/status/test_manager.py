"""The threads that write statuses: woken by changes, one for each sink, and gone by the deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from enginebay.interfaces import Stored
from enginebay.messages import Phase, Slot, StatusRecord
from enginebay.runtime import system_runtime
from enginebay.status import StatusManager
from support.status import SLOT, ScriptedSink, status

READY = Phase.READY


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.005)


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("enginebay-status")]


def test_a_change_is_written_by_the_sink_s_own_thread() -> None:
    sink = ScriptedSink()
    manager = StatusManager(system_runtime(), {"memory": sink})
    manager.start()
    manager.book.set(status(READY))
    _until(lambda: bool(sink.records()))
    manager.book.set(status(Phase.DEGRADED))
    manager.stop(time.monotonic() + 30)
    assert sink.shown().phase is Phase.DEGRADED
    assert not _threads()


def test_a_sink_that_hangs_holds_nobody() -> None:  # T17, T21
    release = threading.Event()

    class Hanging(ScriptedSink):
        def write(self, record: StatusRecord, seen: str) -> str:
            release.wait(60)
            return super().write(record, seen)

    slow, quick = Hanging(), ScriptedSink()
    manager = StatusManager(system_runtime(), {"slow": slow, "quick": quick})
    manager.start()
    for number in range(100):
        manager.book.set(status(READY, message=str(number)))
    _until(lambda: bool(quick.records()))
    manager.book.terminate("a", signal=9)
    _until(lambda: quick.shown().phase is Phase.RECLAIMING)
    manager.stop(time.monotonic() + 0.2)  # the deadline holds, whatever the sink does
    assert not slow.history
    release.set()
    _until(lambda: not _threads())


def test_a_sink_that_raises_keeps_none_from_its_own() -> None:  # T21
    broken, sound = ScriptedSink(), ScriptedSink()
    broken.error = RuntimeError("no")
    manager = StatusManager(system_runtime(), {"broken": broken, "sound": sound})
    manager.start()
    manager.book.set(status(READY))
    _until(lambda: bool(sound.records()))
    _until(lambda: broken.calls > 1)  # it is tried again, by itself
    assert [(one.name, one.behind, one.error) for one in manager.health()] == [
        ("broken", 1, "RuntimeError: no"),
        ("sound", 0, ""),
    ]
    manager.stop(time.monotonic() + 30)
    assert not _threads()


def test_an_end_is_forgotten_when_all_sinks_know() -> None:
    one, two = ScriptedSink(), ScriptedSink()
    two.error = OSError("down")
    manager = StatusManager(system_runtime(), {"one": one, "two": two})
    manager.book.set(status(READY))
    manager.book.terminate("a", exit_code=1)
    manager.book.end("a", asked=False)
    manager.tick()
    assert (one.removed, len(manager.book.entries())) == (["a"], 1)
    two.error = None
    manager.tick()
    assert len(manager.book.entries()) == 1  # it is not asked before its wait is over
    manager.stop(time.monotonic())


def test_setting_from_many_threads_loses_nothing() -> None:
    sink = ScriptedSink()
    manager = StatusManager(system_runtime(), {"memory": sink})
    manager.start()

    def work(rank: int) -> None:
        slot = Slot(group=0, rank=rank)
        for number in range(200):
            manager.book.set(status(READY, inc=f"a{rank}", slot=slot, message=str(number)))

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    manager.stop(time.monotonic() + 30)
    held: dict[Slot, Stored] = {one.record.status.slot: one for one in sink.records()}
    assert {slot.rank: one.record.status.message for slot, one in held.items()} == dict.fromkeys(range(8), "199")
    assert {one.record.version for one in held.values()} == {200}
    assert SLOT in held

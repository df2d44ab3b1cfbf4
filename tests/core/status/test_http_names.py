"""The HTTP sink where the look-up of its server's name hangs: calls are over by their deadline, and so is an engine."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay.interfaces import StatusSinkContext
from enginebay.messages import Phase
from enginebay.runtime import system_runtime
from enginebay.status import StatusManager
from enginebay.status.sinks.http import HttpSink, HttpSinkOptions
from support.http_store import HttpStore, http_store
from support.status import SLOT, status


class LookUps:
    """The system's look-up. Names are answered with ``where`` once ``over`` is set; ``asked`` are those asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.over = threading.Event()
        self.asked: list[str] = []
        self.where = "127.0.0.1"
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._hanging)

    def _hanging(self, host: str, port: int, **how: Any) -> Any:
        if how.get("flags", 0) & socket.AI_NUMERICHOST:
            return self._real(host, port, **how)
        self.asked.append(host)
        assert self.over.wait(60)
        return self._real(self.where, port, **how)

    def end(self) -> None:
        self.over.set()
        for thread in threading.enumerate():
            if thread.name == "enginebay-status-name":
                thread.join(30)


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> Iterator[LookUps]:
    made = LookUps(monkeypatch)
    yield made
    made.end()


@pytest.fixture(scope="module")
def store() -> Iterator[HttpStore]:
    with http_store() as served:
        yield served


def context(store: HttpStore, timeout: float) -> StatusSinkContext[HttpSinkOptions]:
    url = store.url.replace("127.0.0.1", "status.example")
    return StatusSinkContext(options=HttpSinkOptions(url=url, timeout=timeout), engine="one", wall=lambda: 0)


def test_a_call_is_over_by_its_deadline_and_the_next_one_finds_what_was_found(
    look_ups: LookUps, store: HttpStore
) -> None:
    sink = HttpSink(context(store, timeout=0.1))
    for _ in range(3):
        with pytest.raises(OSError, match=r": TimeoutError: the name status\.example was not found in time$"):
            sink.read(SLOT)
    assert look_ups.asked == ["status.example"], "no thread for each call"
    sink.context = context(store, timeout=30.0)
    look_ups.over.set()
    assert sink.read(SLOT) is None
    assert sink.read(SLOT) is None
    assert look_ups.asked == ["status.example"] * 2, "the last call asks anew: servers move"


def test_a_thread_that_could_not_be_had_is_asked_for_again(
    look_ups: LookUps, store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    look_ups.over.set()
    sink = HttpSink(context(store, timeout=30.0))
    with monkeypatch.context() as none_left:
        none_left.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match=r"^can't start new thread$"):
            sink.read(SLOT)
    assert sink.read(SLOT) is None


def test_an_unknown_name_is_told(look_ups: LookUps, store: HttpStore) -> None:
    look_ups.over.set()
    look_ups.where = "no such name"
    with pytest.raises(OSError, match=r"^GET http://status\.example:\d+/group-0/rank-0/cpu: gaierror: "):
        HttpSink(context(store, timeout=30.0)).read(SLOT)


def test_an_address_needs_no_look_up(look_ups: LookUps, store: HttpStore) -> None:
    url = HttpSinkOptions(url=store.url, timeout=30.0)
    assert HttpSink(StatusSinkContext(options=url, engine="one", wall=lambda: 0)).read(SLOT) is None
    assert look_ups.asked == []


def test_an_engine_s_end_is_not_held_up(look_ups: LookUps, store: HttpStore, caplog: pytest.LogCaptureFixture) -> None:
    """The sink's thread is at the end of its calls, and of the engine, while the look-up still hangs."""
    runtime = system_runtime(seed=0)
    manager = StatusManager(runtime, {"http": HttpSink(context(store, timeout=0.1))})
    manager.start()
    manager.book.set(status(Phase.READY))
    with caplog.at_level(logging.WARNING, "enginebay"):
        manager.stop(runtime.clock.now() + 30.0)
    assert not look_ups.over.is_set()
    assert [health.behind for health in manager.health()] == [1]
    assert not [one for one in threading.enumerate() if one.name == "enginebay-status-http"]
    assert "left behind" not in caplog.text
    assert "TimeoutError: the name status.example was not found in time; it is tried again" in caplog.text

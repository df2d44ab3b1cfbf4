"""Sinks that a config names: made by whoever writes to them, and again when that failed; the engine waits for none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay.errors import OptionsRejected, PluginBroken, PluginNotFound
from enginebay.interfaces import NoOptions, StatusSink, StatusSinkContext, StatusSinkPlugin, Stored
from enginebay.messages import Phase, PluginIdentity, Slot, StatusRecord
from enginebay.plugins import Loaded, PluginHost
from enginebay.runtime import system_runtime
from enginebay.status import StatusManager, open_sinks
from enginebay.status.sinks.memory import MemorySink
from support.fake_dist import FakeSite, fake_site
from support.status import SLOT, status


def loaded(factory: Any, name: str = "odd") -> Loaded[StatusSinkPlugin[Any]]:
    identity = PluginIdentity(kind="status sink", name=name, package="odd-pkg", version="1.0", options="{}")
    plugin: StatusSinkPlugin[Any] = StatusSinkPlugin(name=name, factory=factory)
    return Loaded(plugin=plugin, options=NoOptions(), identity=identity)


def opened(factory: Any) -> StatusSink[Any]:
    return open_sinks([loaded(factory)], engine="run 1", wall=lambda: 5.0)["odd"]


@pytest.fixture
def site(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A folder on ``sys.path`` to install packages into."""
    yield from fake_site(tmp_path / "site", monkeypatch)


def test_they_come_by_name_in_the_order_of_the_config() -> None:
    found = PluginHost().load_status_sinks(["sqlite", "memory"], {"sqlite": {"history": 5}})
    sinks = open_sinks(found, engine="one", wall=lambda: 1.0)
    assert list(sinks) == ["sqlite", "memory"]
    assert sinks["sqlite"].context.options.history == 5
    assert open_sinks([], engine="one", wall=lambda: 1.0) == {}


def test_a_sink_is_made_once_by_the_thread_that_calls_it() -> None:
    made: list[tuple[StatusSinkContext[Any], int]] = []

    def make(context: StatusSinkContext[Any]) -> MemorySink:
        made.append((context, threading.get_ident()))
        return MemorySink(context)

    sink = opened(make)
    assert made == []
    thread = threading.Thread(target=lambda: sink.write(StatusRecord(status=status(), version=1), ""))
    thread.start()
    thread.join(30)
    assert sink.read(SLOT) == sink.records()[0]
    sink.remove(SLOT, "a")
    assert sink.records() == []
    [(context, ident)] = made
    assert (context.engine, context.wall(), ident == thread.ident) == ("run 1", 5.0, True)


def test_closing_what_was_never_made_makes_nothing() -> None:
    def make(context: StatusSinkContext[Any]) -> MemorySink:
        raise AssertionError("made for its end")

    opened(make).close()


@pytest.mark.parametrize("call", ["read", "write", "remove", "records"])
@pytest.mark.parametrize("error", [OSError("no route\nto host"), SystemExit(3), KeyError()], ids=str)
def test_what_cannot_be_made_is_told_at_each_call(call: str, error: BaseException) -> None:
    def make(context: StatusSinkContext[Any]) -> MemorySink:
        raise error

    sink = opened(make)
    calls: dict[str, Any] = {
        "read": lambda: sink.read(SLOT),
        "write": lambda: sink.write(StatusRecord(status=status(), version=1), ""),
        "remove": lambda: sink.remove(SLOT, "a"),
        "records": sink.records,
    }
    for _ in range(2):
        with pytest.raises(PluginBroken, match=r"^status sink 'odd' 1\.0 of odd-pkg cannot be made: ") as caught:
            calls[call]()
        assert "\n" not in str(caught.value)


def test_a_factory_that_makes_something_else_is_told() -> None:
    said = r"^the factory of status sink 'odd' 1\.0 of odd-pkg returned a dict, and must return a StatusSink$"
    with pytest.raises(PluginBroken, match=said):
        opened(lambda context: {}).read(SLOT)


def test_one_that_cannot_be_made_is_seen_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the others nor whoever sets statuses hear of it."""
    failing, came = [True], threading.Event()

    class Late(MemorySink):
        def write(self, record: StatusRecord, seen: str) -> str:
            came.set()
            return super().write(record, seen)

    def make(context: StatusSinkContext[Any]) -> MemorySink:
        if failing:
            raise ConnectionRefusedError("nobody there")
        return Late(context)

    sinks = open_sinks([loaded(make), loaded(MemorySink, "sound")], engine="one", wall=lambda: 5.0)
    manager = StatusManager(system_runtime(), sinks)
    with caplog.at_level(logging.WARNING):
        manager.book.set(status(Phase.LOADING))
        manager.tick()
    assert [(one.name, one.failures, one.behind) for one in manager.health()] == [("odd", 1, 1), ("sound", 0, 0)]
    assert manager.health()[0].error.endswith("cannot be made: ConnectionRefusedError: nobody there")
    assert "status sink odd: PluginBroken: status sink 'odd' 1.0 of odd-pkg cannot be made" in caplog.text
    failing.clear()
    manager.start()
    assert came.wait(60), "it was not tried again"
    manager.stop(system_runtime().clock.now() + 30.0)


def test_names_and_options_are_refused_before_anything_starts() -> None:
    host = PluginHost()
    with pytest.raises(PluginNotFound, match=r"^No status sink named 'htp' is installed\. Did you mean 'http'\? Inst"):
        host.load_status_sinks(["htp"], {})
    rejected = (
        ("http", {}, "url: is missing"),
        ("http", {"url": "x"}, "url: must be http://HOST/… or https://HOST/…, and is 'x'"),
        ("http", {"url": "http://x", "timeout": 0}, "timeout: must be more than 0, and is 0"),
        ("sqlite", {"path": "here.sqlite3"}, "path: must be a whole path, and is 'here.sqlite3'"),
        ("sqlite", {"history": -1}, "history: must be at least 0, and is -1"),
        ("memory", {"size": 1}, "size: unknown option"),
    )
    for name, options, said in rejected:
        with pytest.raises(OptionsRejected) as caught:
            host.load_status_sinks([name], {name: options}, "the file")
        assert str(caught.value).startswith(f"the file: status sink '{name}' rejects [status.{name}]: {said}")


def test_a_stranger_registers_as_the_built_in_ones_do(site: FakeSite) -> None:
    site.plugin(
        "status_sinks",
        "log",
        """
        class Opts(Options):
            colour: str = "red"

        class Log(StatusSink):
            def read(self, slot): return None
            def write(self, record, seen): return self.context.options.colour
            def remove(self, slot, incarnation_id): pass
            def records(self): return []

        @hookimpl
        def enginebay_register_status_sinks():
            return [StatusSinkPlugin(name="log", options=Opts, factory=Log)]
        """,
    )
    found = site.host().load_status_sinks(["log"], {"log": {"colour": "blue"}})
    sink = open_sinks(found, engine="one", wall=lambda: 1.0)["log"]
    assert sink.write(StatusRecord(status=status(), version=1), "") == "blue"
    assert isinstance(sink.read(Slot(group=0, rank=0)), Stored | None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "has no enginebay_register_status_sinks"),
        (
            "@hookimpl\ndef enginebay_register_status_sinks(): return [SchedulerPlugin(name='bad', factory=make)]",
            "and must return a list of StatusSinkPlugin",
        ),
    ],
)
def test_a_broken_one_is_a_named_error(site: FakeSite, body: str, said: str) -> None:  # P3
    site.plugin("status_sinks", "bad", body)
    with pytest.raises(PluginBroken, match=r"^status sink 'bad' of bad-pkg 1\.0 is broken: ") as caught:
        site.host().load_status_sinks(["bad"], {})
    assert said in str(caught.value)

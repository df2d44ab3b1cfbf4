"""What the tests of a status sink share: how it is made, as the engine makes it, and records to put into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from enginebay.interfaces import StatusSink
from enginebay.messages import Condition, Incarnation, Phase, Slot, Stage, StatusRecord, Truth, WorkerStatus
from enginebay.plugins import PluginHost
from enginebay.status import open_sinks

MakeSink = Callable[[], StatusSink[Any]]
F = TypeVar("F", bound=Callable[..., None])
SLOT = Slot(group=0, rank=0)
SLOTS = (
    Slot(group=0, rank=1, device="cuda:1"),
    Slot(group=0, rank=11, device="cuda:1"),
    Slot(group=1, rank=1, device="cuda:1"),
    Slot(group=1, rank=1, device="cuda:11"),
    Slot(group=1, rank=11, device="cuda:1"),
    Slot(group=11, rank=1, device="an odd/one?#%41"),
)
TEXTS = {
    "plain": "reading the weights",
    "quotes": "a \"b\" 'c' \\n {d} <e> & %41 $f; --",
    "letters": "Gerät läuft · Устройство · 装置 · جهاز · 🚀 e\u0301",
    "long": "🚀" * 1024,
    "blank": "   ",
}
_LASTING = "_of_lasting_records"


def lasting_only(test: F) -> F:
    """Mark a test that says nothing of a sink whose records are its own."""
    setattr(test, _LASTING, True)
    return test


def make_record(
    phase: Phase = Phase.LOADING,
    *,
    slot: Slot = SLOT,
    life: str = "a",
    version: int = 1,
    message: str = "reading the weights",
) -> StatusRecord:
    """The ``version``-th status of an incarnation named ``life``, with something in every field."""
    return StatusRecord(
        status=WorkerStatus(
            slot=slot,
            incarnation=Incarnation(
                id=life * 32,
                epoch=3,
                generation=ord(life[0]),
                boot="b",
                namespace="pid:[1]",
                pid=4242,
                start_ticks=777,
            ),
            phase=phase,
            reason="Reading",
            message=message,
            exit_code=-9,
            signal=9,
            started=1_700_000_000.125,
            stages=(Stage(phase=Phase.STARTING, begun=1.5, ended=2.25), Stage(phase=Phase.LOADING, begun=2.25)),
            conditions=(
                Condition(kind="ProcessAlive", truth=Truth.TRUE, reason="Started", message=message, since=1.5),
                Condition(kind="Joined", truth=Truth.UNKNOWN, message=message, since=2.5, owner="a-plugin"),
            ),
            restarts=2,
            heartbeat=1_700_000_009.875,
        ),
        version=version,
        finished=phase.terminal,
    )


class StatusSinkBase:
    """The attributes that a suite of one sink sets, and the fixtures of its tests.

    ``lasting`` is what the sink's descriptor says.
    """

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    lasting: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.lasting:  # nothing to skip: such a suite does not have these tests
            for name in dir(cls):
                if hasattr(getattr(cls, name), _LASTING):
                    setattr(cls, name, None)

    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> PluginHost:
        """What is installed, read once."""
        return PluginHost()

    @pytest.fixture
    def sink_options(self, tmp_path: Path) -> Mapping[str, Any]:
        """``options``; override it where they are known at run time only, such as the address of a server."""
        return self.options

    @pytest.fixture
    def make(
        self, host: PluginHost, sink_options: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[MakeSink]:
        """Makes sinks of one engine as the engine does, by the installed name, and closes them.

        The slots are emptied first: where records are kept by others, a test finds what the last one left.
        """
        monkeypatch.setenv("ENGINEBAY_STATE", str(tmp_path / "state"))
        loaded = host.load_status_sinks([self.name], {self.name: dict(sink_options)}, "the conformance suite")
        made: list[StatusSink[Any]] = []

        def make() -> StatusSink[Any]:
            made.append(open_sinks(loaded, engine="conformance", wall=lambda: 1_700_000_000.0)[self.name])
            return made[-1]

        cleaner = make()
        for slot in (SLOT, *SLOTS):
            if (held := cleaner.read(slot)) is not None:
                cleaner.remove(slot, held.record.status.incarnation.id)
        cleaner.close()
        yield make
        for sink in made:
            sink.close()

    @pytest.fixture
    def sink(self, make: MakeSink) -> StatusSink[Any]:
        """One sink."""
        return make()

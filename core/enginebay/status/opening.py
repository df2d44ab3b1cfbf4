"""The sinks that a config names, each made by the thread that writes to it, and again where making it has failed.

What a sink needs may be down when the engine starts: then its calls raise as those of a sink do that went down later.
So there is one road for both: a line in the log, ``StatusManager.health``, and another try after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from enginebay.errors import PluginBroken, in_words, is_interrupt
from enginebay.interfaces import Options, StatusSink, StatusSinkContext, StatusSinkPlugin, Stored
from enginebay.messages import Slot, StatusRecord
from enginebay.plugins import Loaded

__all__ = ["open_sinks"]


def open_sinks(
    loaded: Iterable[Loaded[StatusSinkPlugin[Any]]], *, engine: str, wall: Callable[[], float]
) -> dict[str, StatusSink[Any]]:
    """The sinks by name, for ``StatusManager``; in the order in which they are given.

    ``loaded`` comes from ``PluginHost.load_status_sinks``, which refuses unknown names and bad options. ``engine``
    names this engine's run, ``wall`` is the time of day in seconds. Raises nothing, and reaches for nothing yet.
    """
    return {
        one.plugin.name: _Made(one, StatusSinkContext(options=one.options, engine=engine, wall=wall)) for one in loaded
    }


class _Made(StatusSink[Options]):
    """A sink that is made at its first call."""

    def __init__(self, loaded: Loaded[StatusSinkPlugin[Any]], context: StatusSinkContext[Options]) -> None:
        super().__init__(context)
        self._loaded = loaded
        self._made: StatusSink[Any] | None = None

    def read(self, slot: Slot) -> Stored | None:
        return self._sink().read(slot)

    def write(self, record: StatusRecord, seen: str) -> str:
        return self._sink().write(record, seen)

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        self._sink().remove(slot, incarnation_id)

    def records(self) -> list[Stored]:
        return self._sink().records()

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _sink(self) -> StatusSink[Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> StatusSink[Any]:
        who = f"{self._loaded.name_and_version} of {self._loaded.identity.package}"
        try:
            made: object = self._loaded.plugin.factory(self.context)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise PluginBroken(f"{who} cannot be made: {in_words(error)}") from error
        if not isinstance(made, StatusSink):
            raise PluginBroken(f"the factory of {who} returned a {type(made).__name__}, and must return a StatusSink")
        return made

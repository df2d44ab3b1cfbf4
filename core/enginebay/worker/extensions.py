"""The worker extensions of one worker: made when its runner is, called by declared names alone, closed before it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.errors import PluginBroken, in_words, is_interrupt
from enginebay.interfaces import WorkerExtensionContext, WorkerExtensionPlugin
from enginebay.plugins import Loaded

__all__ = ["WorkerExtensions"]

_log = logging.getLogger(__name__)


class WorkerExtensions:
    """The extensions that the config names, as objects."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._methods: dict[str, Callable[[bytes], object]] = {}

    def make(
        self,
        loaded: Sequence[Loaded[WorkerExtensionPlugin[Any]]],
        context: Callable[[Any], WorkerExtensionContext[Any]],
    ) -> None:
        """Make them; ``context`` is given one's options. Raises ``PluginBroken`` for one that lacks what it declares.

        Those of a start that failed half-way are closed before.
        """
        self.close()
        for one in loaded:
            who = f"worker extension '{one.plugin.name}' of {one.origin}"
            try:
                made = one.plugin.factory(context(one.options))
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise PluginBroken(f"{who} is broken: making it raised {in_words(error)}") from error
            self._objects[one.plugin.name] = made
            for name in one.plugin.methods:
                method = getattr(made, name, None)
                if not callable(method):
                    raise PluginBroken(f"{who} is broken: it declares the method {name}, and has none")
                self._methods[f"{one.plugin.name}.{name}"] = method

    def call(self, method: str, payload: bytes) -> bytes:
        """What the declared ``method`` ("extension.method") returns, b"" for None. Raises whatever it raises."""
        function = self._methods.get(method)
        if function is None:
            known = ", ".join(self._methods) or "nothing"
            raise RuntimeError(f"no worker extension declares {method!r:.80}; declared: {known}")
        value = function(payload)
        if value is None:
            return b""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"{method} returned {type(value).__name__}, and must return bytes or None")
        return bytes(value)

    def close(self) -> None:
        """Close those that can be closed; what one raises is logged, and keeps no other from its end."""
        objects, self._objects = self._objects, {}
        self._methods = {}
        for name, made in reversed(objects.items()):
            close = getattr(made, "close", None)
            if not callable(close):
                continue
            try:
                close()
            except Exception as error:
                _log.warning("closing worker extension '%s' raised %s", name, in_words(error))

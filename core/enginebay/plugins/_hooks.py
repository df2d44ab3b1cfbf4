"""The typed face of the hooks: the only place that calls what plugins implement.

Implementations are registered, validated and ordered by pluggy, and called here one by one: pluggy's own call stops
at the first exception, and an observer that raises may neither fail a step nor hide the others.
"""

from __future__ import annotations

import logging
import threading  # noqa: TID251  # a lock, no thread: the loops of several groups tell observers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pluggy

from enginebay.errors import EnginebayError, PluginBroken, in_words, is_interrupt
from enginebay.interfaces import Executor

if TYPE_CHECKING:
    from enginebay.config import EngineConfig
    from enginebay.interfaces import ExecutorContext
    from enginebay.kvcache import CacheEventBatch
    from enginebay.messages import MemorySnapshot, RequestSummary, StepReport, WorkerInfo, WorkerStatus

_LOG = logging.getLogger("enginebay")
STRIKES: Final = 3
"""An observing hook is disabled when it has raised so often."""


@dataclass(slots=True)
class _Listener:
    """One implementation of one hook. ``strikes`` counts how often it raised."""

    hook: str
    plugin: str
    call: Callable[[Mapping[str, Any]], Any]
    order: int = 0
    strikes: int = 0


class Hooks:
    """Calls the hooks of all loaded plugins. With no listener a call costs a look into a dictionary.

    Observers are told one thing at a time, whichever thread has something to tell.
    """

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._manager = manager
        self._listeners: dict[str, tuple[_Listener, ...]] = {}
        self._wrap_orders: dict[str, int] = {}
        self._telling = threading.RLock()  # an observer may do what tells observers

    def refresh(self, wrap_orders: Mapping[str, int] | None = None) -> None:
        """Look again at what is registered; the host calls it after each registration."""
        self._wrap_orders.update(wrap_orders or {})
        known = {(one.hook, one.plugin): one for group in self._listeners.values() for one in group}
        self._listeners = {}
        for hook, caller in vars(self._manager.hook).items():
            fresh = [
                known.get((hook, i.plugin_name))
                or _Listener(hook, i.plugin_name, _by_name(i), self._wrap_orders.get(i.plugin_name, 0))
                for i in reversed(caller.get_hookimpls())  # pluggy keeps the first to be called last
            ]
            if fresh:
                self._listeners[hook] = tuple(fresh)

    def listeners(self, hook: str) -> tuple[str, ...]:
        """The names of the plugins that implement a hook, in the order in which they are called."""
        return tuple(one.plugin for one in self._in_order(hook))

    def configure(self, config: EngineConfig) -> None:
        """Let plugins look at the config before anything starts; one may refuse it by raising ``ConfigError``."""
        for one in self._listeners.get("enginebay_configure", ()):
            # a copy for each: the models are frozen, but the option tables in them are plain dicts
            _asked(one, {"config": config.model_copy(deep=True)})

    def wrap_executor(self, executor: Executor[Any], context: ExecutorContext[Any]) -> Executor[Any]:
        """The executor as the extensions want it wrapped, lowest ``wrap_order`` first, that is: innermost."""
        for one in self._in_order("enginebay_wrap_executor"):
            wrapped = _asked(one, {"executor": executor, "context": context})
            if wrapped is None:
                continue
            if not isinstance(wrapped, Executor):
                raise PluginBroken(
                    f"{one.hook} of {one.plugin} returned a {type(wrapped).__name__}, "
                    f"and must return an Executor or None."
                )
            executor = wrapped
        return executor

    def probe_reclaim(self, worker: WorkerStatus) -> dict[str, Callable[[], Any]]:
        """By plugin, what says something of a stopped worker's resources; not called yet, for it may take its time."""
        listeners = self._listeners.get("enginebay_probe_reclaim", ())
        return {one.plugin: partial(one.call, {"worker": worker}) for one in listeners}

    def graph_passes(self) -> dict[str, Callable[[], Any]]:
        """By plugin, what offers its graph passes; not called yet, for whose are wanted the host knows."""
        offers = self._listeners.get("enginebay_graph_passes", ())
        return {one.plugin: partial(one.call, {}) for one in offers}

    def engine_started(self, in_force: Mapping[str, str]) -> None:
        """The engine is ready."""
        self._tell("enginebay_engine_started", in_force=dict(in_force))

    def engine_stopped(self) -> None:
        """The engine has stopped."""
        self._tell("enginebay_engine_stopped")

    def worker_started(self, worker: WorkerInfo) -> None:
        """A worker has chosen its device."""
        self._tell("enginebay_worker_started", worker=worker)

    def memory_snapshot(self, rank: int, snapshot: MemorySnapshot) -> None:
        """A worker's memory before it loads."""
        self._tell("enginebay_memory_snapshot", rank=rank, snapshot=snapshot)

    def step_finished(self, report: StepReport) -> None:
        """A step's tokens were committed."""
        self._tell("enginebay_step_finished", report=report)

    def request_finished(self, summary: RequestSummary) -> None:
        """A request ended."""
        self._tell("enginebay_request_finished", summary=summary)

    def cache_events(self, batch: CacheEventBatch) -> None:
        """Something happened to the content of a KV cache."""
        self._tell("enginebay_cache_events", batch=batch)

    def _in_order(self, hook: str) -> list[_Listener]:
        return sorted(self._listeners.get(hook, ()), key=lambda one: one.order)

    def _tell(self, hook: str, **arguments: Any) -> None:
        listeners = self._listeners.get(hook)
        if listeners is None:
            return
        with self._telling:
            for one in listeners:
                if one.strikes >= STRIKES:
                    continue
                try:
                    one.call(arguments)
                except BaseException as error:  # an observer's fault is its own; nor may it end the process
                    if is_interrupt(error):
                        raise
                    one.strikes += 1
                    said = in_words(error)
                    if one.strikes < STRIKES:
                        _LOG.warning("%s of %s raised %s", hook, one.plugin, said, exc_info=error)
                    else:
                        _LOG.error("%s of %s raised for the third time and is disabled: %s", hook, one.plugin, said)


def _asked(one: _Listener, arguments: Mapping[str, Any]) -> Any:
    try:
        return one.call(arguments)
    except EnginebayError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PluginBroken(f"{one.hook} of {one.plugin} raised {in_words(error)}") from error


def _by_name(implementation: pluggy.HookImpl) -> Callable[[Mapping[str, Any]], Any]:
    function, names = implementation.function, implementation.argnames
    return lambda arguments: function(*[arguments[name] for name in names])

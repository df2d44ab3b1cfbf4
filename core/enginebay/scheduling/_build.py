"""From a scheduler's descriptor to a scheduler, whichever of the two tiers its factory returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from enginebay.errors import EnginebayError, PluginBroken, in_words
from enginebay.interfaces import (
    BatchConstraints,
    Options,
    Policy,
    Propose,
    Scheduler,
    SchedulerContext,
    SchedulerLimits,
    SchedulerPlugin,
)
from enginebay.kvcache import KVCacheManager
from enginebay.scheduling._mechanics import MechanicsScheduler

O = TypeVar("O", bound=Options)


def make_scheduler(
    plugin: SchedulerPlugin[O],
    options: O,
    *,
    limits: SchedulerLimits,
    constraints: BatchConstraints,
    kv_cache: KVCacheManager,
    now: Callable[[], float],
    propose: Propose | None = None,
) -> Scheduler[Any]:
    """Call the plugin's factory; a ``Policy`` gets the mechanics, a whole ``Scheduler`` is taken as it is.

    ``propose`` guesses tokens for the runner to verify; None: speculation is off. Raises ``PluginBroken`` when the
    factory raises or returns something else.
    """
    context = SchedulerContext(
        options=options,
        limits=limits,
        constraints=constraints,
        kv=kv_cache.view(),
        kv_cache=kv_cache,
        now=now,
        propose=propose,
    )
    try:
        made = plugin.factory(context)
    except EnginebayError:
        raise
    except Exception as error:
        raise PluginBroken(
            f"scheduler '{plugin.name}' could not be made: its factory raised {in_words(error)}"
        ) from error
    if isinstance(made, Scheduler):
        return made
    if not isinstance(made, Policy):
        raise PluginBroken(
            f"scheduler '{plugin.name}' could not be made: its factory returned {type(made).__name__}, "
            "and a Policy or a Scheduler is expected"
        )
    return MechanicsScheduler(made, context)

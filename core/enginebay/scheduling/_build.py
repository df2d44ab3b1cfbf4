"""From a scheduler's descriptor to a scheduler, whichever of the two tiers its factory returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from enginebay.errors import EnginebayError, PluginBroken, in_words, is_interrupt
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
    num_stages: int = 1,
) -> Scheduler[Any]:
    """Call the plugin's factory; a ``Policy`` gets the mechanics, a whole ``Scheduler`` is taken as it is.

    ``propose`` guesses tokens for the runner to verify; None: speculation is off. ``num_stages`` is as in the context.
    Raises ``PluginBroken`` when the factory raises or returns something else.
    """
    context = SchedulerContext(
        options=options,
        limits=limits,
        constraints=constraints,
        kv=kv_cache.view(),
        kv_cache=kv_cache,
        now=now,
        propose=propose,
        num_stages=num_stages,
    )
    try:
        made = plugin.factory(context)
    except EnginebayError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
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
    if kept := _kept(made, kv_cache):
        raise PluginBroken(
            f"scheduler '{plugin.name}' could not be made: its policy keeps the KV cache's manager as self.{kept}, and "
            "only a whole Scheduler may write to the cache: context.kv tells a policy what is in it"
        )
    return MechanicsScheduler(made, context)


def _kept(policy: Policy[Any], kv_cache: KVCacheManager) -> str:
    """Where a policy keeps what it could write to the cache with, "" when nowhere.

    Its own context leads there no more; the one that its factory was called with does, since a factory may return
    either tier.
    """
    held: dict[str, Any] = getattr(policy, "__dict__", {})
    for name, value in held.items():
        leads = isinstance(value, SchedulerContext) and value.kv_cache is kv_cache
        if leads or value is kv_cache or value is kv_cache.pool:
            return name
    return ""

"""What the parts of the schedulers' suite share: the names of what is tested, and simulated cores around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from enginebay.errors import EnginebayError
from enginebay.interfaces import SchedulerLimits, SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.plugins import PluginHost
from enginebay.scheduling import MechanicsScheduler
from enginebay.testing._loads import Load, make_limits
from enginebay.testing._loop import CoreLoop

LoadedScheduler = tuple[SchedulerPlugin[Any], Any]
"""(descriptor, validated options)."""


class SchedulerBase:
    """The attributes that a suite of one scheduler sets: its installed ``name``, and its ``options``.

    ``options`` are what would stand under ``[scheduler.options]``; ``seeds`` is how many random loads are played.
    """

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    seeds: ClassVar[int] = 15

    @pytest.fixture
    def loaded(self) -> LoadedScheduler:
        """The descriptor and its validated options, found as the engine finds them."""
        try:
            found = PluginHost().load_scheduler(self.name, dict(self.options), source="the conformance suite")
        except EnginebayError as error:  # of each test: one line, and no way through the kit's own code
            pytest.fail(f"{type(self).__name__}: {error}", pytrace=False)
        return found.plugin, found.options

    def loop(self, loaded: LoadedScheduler, load: Load, *, depth: int = 1) -> CoreLoop:
        """A simulated core of that load's size, with a fresh scheduler."""
        return CoreLoop(*loaded, limits=load.limits, constraints=load.constraints, cache=load.cache(), depth=depth)

    def small(
        self, loaded: LoadedScheduler, *, num_blocks: int = 64, limits: SchedulerLimits | None = None
    ) -> CoreLoop:
        """A simulated core with a cache of ``num_blocks`` blocks of 4 tokens."""
        cache = KVCacheManager(num_blocks=num_blocks, block_size=4)
        return CoreLoop(*loaded, limits=limits or make_limits(), cache=cache)


def overlaps(loaded: LoadedScheduler, loop: CoreLoop) -> bool:
    """Whether steps may be scheduled before the last one's tokens are known: declared, or by the mechanics."""
    return isinstance(loop.scheduler, MechanicsScheduler) or loaded[0].capabilities.overlap_safe

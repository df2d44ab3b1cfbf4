"""The executor ``uni``: its one worker is a thread here."""

from __future__ import annotations

from typing import ClassVar

from enginebay.errors import CapabilityError
from enginebay.interfaces import NoOptions, StartSpec
from enginebay.worker import ThreadExecutor


class UniExecutor(ThreadExecutor[NoOptions]):
    """One worker in a thread of this process, for a world of one rank."""

    label: ClassVar = "uni"

    def prepare(self, spec: StartSpec) -> None:
        if len(spec.world.ranks) != 1:
            raise CapabilityError(
                f"executor 'uni' runs one worker, and the plan has {len(spec.world.ranks)} ranks: choose executor "
                "'mp', or set tensor_parallel_size = 1 and pipeline_parallel_size = 1 in [parallel]"
            )

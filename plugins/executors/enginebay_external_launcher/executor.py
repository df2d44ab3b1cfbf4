"""The executor ``external_launcher``: this process's rank alone; its worker is a thread here, as under ``uni``."""

from __future__ import annotations

from typing import ClassVar

from enginebay.errors import CapabilityError, StartFailed, one_line
from enginebay.interfaces import ExecutorContext, NoOptions, StartSpec
from enginebay.worker import ThreadExecutor
from enginebay.worker.launched import numbered_store
from enginebay_external_launcher.meeting import Meeting


class ExternalLauncherExecutor(ThreadExecutor[NoOptions]):
    """One rank of a world whose processes a launcher has started; each has an engine of its own.

    The processes, and the world group if their owner has made one, are the owner's: neither is ended here.
    """

    label: ClassVar = "external_launcher"

    def __init__(self, context: ExecutorContext[NoOptions]) -> None:
        super().__init__(context)
        self._meeting: Meeting | None = None

    def prepare(self, spec: StartSpec) -> None:
        size, own = len(spec.world.ranks), spec.world.own_ranks
        if size == 1:
            return  # nobody to meet
        if own is None or len(own) != 1:
            raise CapabilityError(
                f"executor 'external_launcher' runs the one rank of this process, and the plan has {size} of its own"
            )
        clock = self.context.runtime.clock
        try:
            store = numbered_store("engine", own[0], max(1.0, spec.deadline - clock.now()))
            self._meeting = Meeting(store, own[0], size, clock.now)
        except (RuntimeError, ValueError, OSError) as error:  # what torch raises when nobody serves the store
            raise StartFailed(
                f"rank {own[0]} cannot reach the launcher's store (MASTER_ADDR, MASTER_PORT) by [deadlines] start: "
                f"{one_line(' '.join(str(error).split()), 400)}"
            ) from error

    def exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        return (value,) if self._meeting is None else self._meeting.exchange(name, value, deadline)

    def stop(self, deadline: float) -> None:
        super().stop(deadline)
        if self._meeting is not None:
            self._meeting.leave()

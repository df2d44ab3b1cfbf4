"""All the workers of one generation as processes: spawned together, asked for their stacks, put down together."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Final

from enginebay.interfaces import ExecutorContext, RankHealth, StartSpec
from enginebay.transport.beat import Beat
from enginebay.transport.shared import EngineEnd
from enginebay.worker.host import available_cores
from enginebay.worker.kernel import scheduled
from enginebay_mp.binding import shares, thread_environment
from enginebay_mp.descendants import MARK
from enginebay_mp.logs import Printer
from enginebay_mp.options import MpOptions
from enginebay_mp.process import WorkerProcess

__all__ = ["LAST_MOMENT", "Crew"]

_LOG: Final = logging.getLogger("enginebay.mp")
LAST_MOMENT: Final = 5.0
"""Seconds that the kernel is given to end what was killed."""
_LOOK: Final = 0.01
_SETTLE: Final = 0.1


class Crew:
    """The workers in rank order, from ``spawn`` on."""

    def __init__(self, context: ExecutorContext[MpOptions], spec: StartSpec) -> None:
        self.workers: dict[int, WorkerProcess] = {}
        self.ranks = tuple(place.rank for place in spec.world.own_places)
        self._options, self._runtime, self._spec = context.options, context.runtime, spec
        self._record = context.record_resource
        self._clock = context.runtime.clock
        self._dumping = threading.Lock()

    def spawn(self, line: EngineEnd, printer: Printer, listen: Callable[[WorkerProcess], None]) -> None:
        """Spawn every worker and wait for none; ``listen`` is told of each. What came before a failure stays."""
        spec, count = self._spec, len(self.ranks)
        cpus = shares(self._options.bind_cpus, count)
        share = available_cores() // (count * spec.world.data_parallel_size)
        for index, rank in enumerate(self.ranks):
            mark = f"{spec.incarnations[index]}-{token_hex(8)}"
            self._record("process", f"{MARK}={mark}")
            worker = WorkerProcess.spawn(
                self._runtime,
                printer,
                rank=rank,
                ranks=count,
                incarnation=spec.incarnations[index],
                mark=mark,
                payload=spec.payloads[index],
                ticket=line.ticket(rank),
                cpus=cpus[index],
                environment=thread_environment(os.environ, len(cpus[index]) or share),
            )
            self.workers[rank] = worker
            listen(worker)

    @property
    def running(self) -> list[WorkerProcess]:
        """Those whose end has not been read."""
        return [worker for worker in list(self.workers.values()) if worker.is_running]

    @property
    def lost(self) -> list[WorkerProcess]:
        """Those that have ended otherwise than by leaving."""
        return [worker for worker in list(self.workers.values()) if not worker.is_running and not worker.left]

    def health(self, line: EngineEnd | None) -> tuple[RankHealth, ...]:
        """Each worker by what it said last on the line, and by /proc; asks nobody."""
        found = []
        for worker in list(self.workers.values()):
            beat = Beat() if line is None else line.heartbeat(worker.rank)
            age = (self._clock.now_ns() - beat.at_ns) / 1e9 if beat.at_ns else 0.0
            ran, queued = scheduled(worker.process.pid)
            found.append(
                RankHealth(
                    rank=worker.rank,
                    phase=beat.phase,
                    step=beat.step,
                    age=max(0.0, age),
                    state=worker.state(),
                    budget=beat.budget_s,
                    ran=ran,
                    queued=queued,
                )
            )
        return tuple(found)

    def stacks(self, deadline: float) -> dict[int, str]:
        """What SIGUSR1 brings out of each; all of it has come when nothing has for a moment."""
        workers = [worker for worker in self.running if worker.state() == "running"]
        with self._dumping:
            for worker in workers:
                worker.log.begin_stacks()
                worker.ask_for_stacks()
            seen, since = -1, self._clock.now()
            while (now := self._clock.now()) < deadline:
                counts = [worker.log.num_stack_lines for worker in workers]
                if sum(counts) != seen:
                    seen, since = sum(counts), now
                elif all(counts) and now - since > _SETTLE:
                    break
                time.sleep(_LOOK)
            found = {worker.rank: worker.log.end_stacks() for worker in workers}
        return {rank: text for rank, text in found.items() if text}

    def put_down(self) -> None:
        """Kill and reap all that runs, in the caller's thread."""
        for worker in self.running:
            worker.kill()
        until = self._clock.now() + LAST_MOMENT
        for worker in list(self.workers.values()):
            while not worker.reap() and self._clock.now() < until:
                time.sleep(_LOOK)
            if worker.is_running:  # the kernel holds it: in a call to a device or a file system that hangs
                _LOG.error("rank %d (pid %d) was killed and does not end", worker.rank, worker.process.pid)
            worker.end_descendants()

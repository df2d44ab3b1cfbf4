"""The workers' lives: how they end and are started again; and what must hold of restarts, suspects and statuses.

What is counted here is counted again, from what is seen from outside: the core's own counts are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enginebay.engine.replies import Generation
from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import EnginebayError, WorkerLost
from enginebay.interfaces import Executor, NoOptions, WorkerExit
from enginebay.messages import FinishReason, Phase, RequestOutput, WorldPlan
from enginebay.runtime import Runtime
from enginebay.status.restarts import RestartRules
from simulation.clock import SimClock
from simulation.network import SimSpawner
from simulation.plan import Plan
from simulation.sinks import SimSink
from simulation.workers import Violation

__all__ = ["Lives"]

PHASE_SECONDS = 0.5
RECLAIM_SECONDS = 30.0
LATEST = 13.0
"""So many seconds after a death it has been seen, whatever the plan."""
_PHASES = (Phase.STARTING, Phase.INIT_DEVICE, Phase.LOADING, Phase.WARMUP)
_ENDED = (Phase.RECLAIMING, Phase.FAILED)
_AMPLE = RestartRules(per_slot=1000, per_engine=1000, failed_starts=1000)
_CONVICTED = "the workers were lost each of the three times"


class Lives:
    """One world's. ``roster`` is the core's, ``respawn`` is its ``CoreParts.respawn``."""

    def __init__(
        self,
        plan: Plan,
        clock: SimClock,
        runtime: Runtime,
        spawner: SimSpawner,
        generation: Generation,
        watch: WorkerWatch,
        *,
        tick: Callable[[], None],
        log: Callable[[tuple[object, ...]], None],
    ) -> None:
        self._num_faults = len(plan.faults)
        self._rules = _AMPLE
        if plan.budget:
            self._rules = RestartRules(per_slot=plan.budget, per_engine=plan.budget)
        self._sink = SimSink(clock.now, plan.sink_faults, plan.usurped)
        self._exited: set[str] = set()
        self._suspects_early = bool(plan.seed % 2)
        self._supervision = Supervision(runtime, {"sim": self._sink}, rules=self._rules)
        self._stuck, self._free_at = plan.stuck, 0.0
        self.roster = Roster(self._supervision, slots_of(WorldPlan(), "cpu"), runtime.entropy, self._remains)
        self._clock, self._spawner, self._generation, self._watch = clock, spawner, generation, watch
        self._tick, self._log = tick, log
        self.executor: Executor[NoOptions]
        self.num_deaths = 0
        self.num_poisoned = 0
        self.num_respawns = 0
        self.num_convicted = 0
        self.died_in: list[str] = []
        """The phase of each loss, in order."""
        self._convicted = False
        self._found: list[Violation] = []
        self._phase: Phase = Phase.READY
        self._ready_at: float | None = clock.time
        self._endings: list[tuple[float, Phase, bool]] = []
        self._sent: dict[str, None] = {}
        self._losses: dict[str, int] = {}
        self.roster.renew(0)
        self.roster.enter(Phase.READY)

    def die(self, delay: float) -> None:
        """The worker's process ends; so much later it is seen."""
        worker = self._spawner.kill()
        if worker is None:
            return
        self.num_deaths += 1
        self._log(("die", worker.incarnation, self._clock.time))
        worker_exit = WorkerExit(rank=0, incarnation=self.roster.incarnations[0], signal=9)

        def seen() -> None:
            if self._suspects_early:  # somebody calls it an end before it is known to be one
                self._supervision.book.advance(worker_exit.incarnation, Phase.FAILED, reason="Suspected")
                self._supervision.manager.tick()
            self.roster.exited(worker_exit)
            self._exited.add(worker_exit.incarnation)
            if self._suspects_early:
                self._supervision.manager.tick()
            self._watch.exited(worker_exit)

        self._clock.at(self._clock.time + delay, seen)

    def poisoned(self) -> None:
        """It ends of a request."""
        self.num_poisoned += 1
        self.die(0.0)

    def sent(self, request_ids: Iterable[str]) -> None:
        """These are in a step of the generation in force."""
        self._sent.update(dict.fromkeys(request_ids))

    def told(self, row_id: str, output: RequestOutput) -> None:
        """What a client is told: a token acquits, and proves the workers sound; a conviction needs three losses."""
        if output.token_ids:
            self._losses.pop(row_id, None)
            if self._convicted:
                self._convicted = False
                self._endings.clear()
        if output.finish_reason is FinishReason.ERROR and (output.error or "").startswith(_CONVICTED):
            self._convicted = True
            self.num_convicted += 1
            if self._losses.get(row_id, 0) < 3:
                raise Violation(f"{row_id} is convicted after {self._losses.get(row_id, 0)} losses")

    def respawn(self, pause: Callable[[], None]) -> None:
        """What is left of the old worker goes, and a new one stands a while later, if it does not end before."""
        try:
            self._respawn(pause)
        except Violation as violation:  # which the core would take for a start that failed
            self._found.append(violation)
            raise

    def check(self) -> None:
        """Raise what was found while the core was at work."""
        for found in (*self._found, *self._sink.found):
            raise found

    def _respawn(self, pause: Callable[[], None]) -> None:
        clock, roster = self._clock, self.roster
        self._log(("respawn", self._generation.current, clock.time))
        self.num_respawns += 1
        self._count_ending()
        self._tick()
        self._free_at = clock.time + self._stuck
        roster.stop(self.executor, clock.time + 10.0)
        roster.reclaim(RECLAIM_SECONDS)
        if self._remains():
            raise Violation("a new worker is started while something of the old one is left")
        if self.num_respawns % 2:  # else the sink has not been told of them when the next ones come
            self._supervision.manager.tick()
        roster.renew(self._generation.current)
        self._wait(pause)
        worker = self._spawner.start()
        self._watch.expect(roster.incarnations)
        self._ready_at = None
        for phase in _PHASES:
            self._phase = phase
            roster.enter(phase)
            self._look()
            self._supervision.manager.tick()
            self._tick()
            if not worker.alive:
                raise WorkerLost("rank 0: the worker ended while it started")
            clock.sleep(PHASE_SECONDS)
        self._phase, self._ready_at = Phase.READY, clock.time
        roster.enter(Phase.READY)

    def _look(self) -> None:
        """Whoever was seen to have ended is not said to live."""
        for status in self.roster.statuses():
            if status.incarnation.id in self._exited and status.phase not in _ENDED:
                raise Violation(f"{status} is said of one that has ended")

    def _remains(self) -> tuple[str, ...]:
        return ("segment s",) if self._clock.time < self._free_at else ()

    def _count_ending(self) -> None:
        for row_id in self._sent:
            self._losses[row_id] = self._losses.get(row_id, 0) + 1
        self._sent = {}
        self.died_in.append(self._phase)
        now = self._clock.time
        if self._ready_at is not None and now - self._ready_at >= self._rules.good_run:
            self._endings.clear()
        self._endings.append((now, self._phase, self._ready_at is not None))

    def _over_budget(self) -> bool:
        return sum(at > self._clock.time - self._rules.window for at, _, _ in self._endings) > self._rules.per_slot

    def _wait(self, pause: Callable[[], None]) -> None:
        if self._over_budget():
            raise Violation(f"restarts at {[at for at, _, _ in self._endings]}, and {self._rules.per_slot} are allowed")
        began, count = self._clock.time, len(self._endings)
        pause()
        most = 0.0 if count == 1 else min(60.0, 2.0 ** (count - 2))
        if not 0.8 * most - 1e-6 <= self._clock.time - began <= most + 1e-6:
            raise Violation(f"restart {count} came after {self._clock.time - began} s, and {most} s are asked for")

    def check_death(self, error: EnginebayError) -> None:
        """The engine has ended of its workers: it may when its budget is spent, or a start failed twice."""
        self.check()
        if "quarantined" in str(error) and self._stuck > RECLAIM_SECONDS:
            return
        self._count_ending()
        if self._over_budget():
            return
        last = self._endings[-self._rules.failed_starts :]
        if len(last) == self._rules.failed_starts and {(was, ran) for _, was, ran in last} == {(last[0][1], False)}:
            return
        raise Violation(f"the engine gave up after the endings {self._endings}: {error}")

    def check_end(self, num_poison: int) -> None:
        """The core has been stopped: nothing of any life is left, and the sink comes to know it, down or not.

        ``num_poison``: rows that workers die of.
        """
        if self.num_poisoned > 3 * num_poison + self._num_faults:  # each may hide one death, or another's guilt
            raise Violation(f"{num_poison} requests killed {self.num_poisoned} workers")
        quarantined = bool(self._remains())
        self._clock.sleep(LATEST)
        book, manager = self._supervision.book, self._supervision.manager
        if book.num_illegal:
            raise Violation(f"{book.num_illegal} statuses were refused")
        if quarantined:  # and stays so
            return
        for entry in book.entries():
            if not entry.record.finished or not entry.status.phase.terminal:
                raise Violation(f"{entry.status} is left of a worker that is gone")
        for _ in range(10):
            manager.tick(full=True)
            if not book.entries():
                break
            self._clock.time += 31.0
        if book.entries():
            raise Violation(f"the sink never learnt the end of {book.entries()}")
        self._sink.check_end(self.roster.incarnations[0])
        self.check()

"""One run of one plan: clients, core, executor and worker, until nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.engine.admission.admit import AdmissionLimits
from enginebay.engine.core import EngineCore
from enginebay.engine.parts import CoreParts
from enginebay.engine.replies import Generation
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import StartFailed, WorkerHung, WorkerLost
from enginebay.interfaces import (
    BatchConstraints,
    ExecutorContext,
    NoOptions,
    SchedulerContext,
    SchedulerLimits,
)
from enginebay.kvcache import KVCacheManager
from enginebay.messages import ExecuteModel, RequestSummary, SchedulerOutput, StepReport
from enginebay.runtime import Entropy, Runtime
from enginebay.scheduling import MechanicsScheduler
from simulation.clients import Clients
from simulation.clock import SimClock
from simulation.grammars import MAX_DRAFTS, grammars_of
from simulation.invariants import Blocks, check_quiet, check_refill, check_requests, check_schedule, writes_of
from simulation.lives import Lives
from simulation.network import BYTES, OBJECTS, NoTransport, Pending, SimExecutor, SimSpawner
from simulation.plan import EOS, MAX_MODEL_LEN, VOCAB, Plan
from simulation.policies import POLICIES
from simulation.reference import text_of
from simulation.workers import FakeWorker, Violation

__all__ = ["World"]

STEP_TIMEOUT = 10.0
MOST_TURNS = 2000
"""A run with finite faults is over long before, even if its turns take no time."""

PATIENCE = 15.0
"""Liveness: in so many fake seconds, and as many more for each fault, a token is committed, a request ends, or a prompt
is computed further than ever before. The most that one fault costs is a step's deadline and a respawn."""


class Letters:
    """A detokenizer of one letter per token."""

    def push(self, token_ids: Any) -> str:
        return text_of(token_ids)

    def ahead(self, length: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


_LETTERS = Letters()


class Deaf:
    """Observers who do not listen."""

    def step_finished(self, report: StepReport) -> None: ...
    def request_finished(self, summary: RequestSummary) -> None: ...
    def engine_stopped(self) -> None: ...


class World:
    """A core and all that it touches, on fake time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = SimClock()
        self.log: list[tuple[object, ...]] = []
        self.generation = Generation()
        self.watch = WorkerWatch()
        self.spawner = SimSpawner(lambda number: FakeWorker(number, plan.block_size))
        self.spawner.start()
        self.runtime = Runtime(
            clock=self.clock, transport=NoTransport(), spawner=self.spawner, entropy=Entropy(plan.seed)
        )
        wire = BYTES if plan.codec else OBJECTS
        context = ExecutorContext(
            options=_NO_OPTIONS,
            runtime=self.runtime,
            encode=wire.encode,
            unwrap=wire.unwrap,
            next_call_id=self.generation.next_call_id,
            generation=lambda: self.generation.current,
        )
        self.blocks = Blocks()
        self.num_ticks = 0
        self.last_generation = 0
        self.deaths = {fault.at: fault.delay for fault in plan.faults if fault.kind == "die"}
        self.cancels = {want.cancel: index for index, want in enumerate(plan.wants) if want.cancel}
        self.happenings = {*self.deaths, *self.cancels}
        self.lives = Lives(
            plan,
            self.clock,
            self.runtime,
            self.spawner,
            self.generation,
            self.watch,
            tick=self.tick,
            log=self.log.append,
        )
        self.executor = self.lives.executor = SimExecutor(
            context,
            self.clock,
            self.spawner,
            {fault.at: fault for fault in plan.faults if fault.kind != "die"},
            wire=wire,
            tick=self.tick,
            poison=frozenset(f"r{index}" for index, want in enumerate(plan.wants) if want.poison),
            poisoned=self.lives.poisoned,
            on_send=self.on_send,
            log=self.log.append,
        )
        self.limits = SchedulerLimits(
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            chunked_prefill=plan.chunked,
        )
        self.kv: KVCacheManager
        self.core = EngineCore(
            CoreParts(
                executor=self.executor,
                make_scheduler=self._make_scheduler,
                runtime=self.runtime,
                hooks=_DEAF,
                limits=_ADMISSION,
                detokenizer=lambda skip_special_tokens: _LETTERS,
                model="simulated",
                scheduler_name="scheduler",
                runner_name="runner",
                eos_token_ids=frozenset({EOS}),
                max_model_len=MAX_MODEL_LEN,
                generation=self.generation,
                in_force={},
                watch=self.watch,
                roster=self.lives.roster,
                step_timeout=STEP_TIMEOUT,
                depth=plan.depth,
                grammars=grammars_of(),
                step_every=1 << 30,
                respawn=self.lives.respawn,
                max_failed_steps=len(plan.faults) + len(plan.wants) + 2,
            )
        )
        self.clients = Clients(self.core, self.lives.told)
        self.arrivals = sorted(range(len(plan.wants)), key=lambda index: plan.wants[index].at, reverse=True)
        self.aborts: list[str] = []

    def _make_scheduler(self) -> MechanicsScheduler[NoOptions]:
        self.kv = KVCacheManager(num_blocks=self.plan.num_blocks, block_size=self.plan.block_size)
        context = SchedulerContext(
            options=_NO_OPTIONS,
            limits=self.limits,
            constraints=_DRAFTS if self.plan.speculates else _NO_CONSTRAINTS,
            kv=self.kv.view(),
            kv_cache=self.kv,
            now=self.clock.now,
            propose=self._propose if self.plan.speculates else None,
            num_stages=self.plan.stages,
        )
        self.scheduler = MechanicsScheduler(POLICIES[self.plan.policy](context), context)
        return self.scheduler

    def _propose(self, prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
        return self.clients.propose(prompt, output, at_most)

    def tick(self) -> None:
        """Between any two events: what the plan lets happen just here."""
        self.num_ticks += 1
        if self.num_ticks in self.happenings:
            self._happen()

    def _happen(self) -> None:
        index = self.cancels.get(self.num_ticks)
        if index is not None:
            self.aborts.append(f"r{index}")
        delay = self.deaths.get(self.num_ticks)
        if delay is not None:
            self.lives.die(delay)

    def on_send(self, schedule: SchedulerOutput, pending: Pending) -> None:
        """The core's state as it sends a step."""
        if schedule.generation != self.generation.current or schedule.generation != pending.envelope.generation:
            raise Violation(f"a step of generation {schedule.generation} in {self.generation.current}")
        check_schedule(schedule, self.plan)
        self.lives.sent(schedule.num_scheduled_tokens)
        alone = self.core._rebirth.isolation.alone
        if alone is not None and set(schedule.num_scheduled_tokens) - {alone}:
            raise Violation(f"{alone} is to run alone, and a step is of {list(schedule.num_scheduled_tokens)}")
        if schedule.generation != self.last_generation:
            self.last_generation = schedule.generation
            check_refill(self.scheduler)
        self.blocks.check(self.scheduler)
        earlier = [
            one.writes
            for one in self.executor.pending
            if one.envelope.generation == schedule.generation and isinstance(one.call, ExecuteModel)
        ]
        if len(earlier) >= self.plan.depth:
            raise Violation(f"{len(earlier)} steps are in flight before one more, and {self.plan.depth} may be")
        if self.plan.depth > 1:
            pending.writes = writes_of(schedule, self.scheduler, earlier)

    def drain(self) -> None:
        """Take in what clients sent meanwhile, as the engine's loop does."""
        now, wants = self.clock.time, self.plan.wants
        while self.arrivals and wants[self.arrivals[-1]].at <= now:
            index = self.arrivals.pop()
            self.log.append(("ask", index, now))
            self.clients.ask(f"r{index}", wants[index])
        if self.aborts:
            aborted, self.aborts = self.aborts, []
            self.log.append(("abort", now, *aborted))
            self.clients.cancel(aborted)

    def run(self) -> None:
        """All of it; raises ``Violation`` or whatever the core raises."""
        core, clock, clients = self.core, self.clock, self.clients
        num_poison = sum(want.n for want in self.plan.wants if want.poison)
        num_losses = len(self.plan.faults) + 3 * num_poison
        patience = PATIENCE * (1 + num_losses) + 2.0**num_losses + self.plan.stuck * num_losses
        progress, since = -1, clock.time
        for turn in range(MOST_TURNS):
            self.tick()
            self.drain()
            if not core.has_work():
                check_quiet(core, self.scheduler)
                if not self.arrivals:
                    break
                clock.sleep(max(0.0, self.plan.wants[self.arrivals[-1]].at - clock.time))
                since = clock.time
                continue
            began = clock.time
            try:
                outputs, scheduled = core.step(self.drain)
            except (WorkerLost, WorkerHung, StartFailed) as error:
                self.lives.check_death(error)
                if len(core._requests):
                    raise Violation("requests outlive the engine") from error
                break
            clients.receive(outputs, clock.time)
            if turn % self.plan.reader == 0:
                clients.read()
            check_requests(core, clients.streams, began)
            self.blocks.check(self.scheduler)
            if core._requests.progress != progress:
                progress, since = core._requests.progress, clock.time
            elif clock.time - since > patience:
                raise Violation(f"nothing was brought about between {since} and {clock.time}")
            if not scheduled and not outputs:
                clock.sleep(0.125)
        else:
            raise Violation(f"not over after {MOST_TURNS} turns")
        clients.read()
        self.lives.check()
        clients.check_end(self.executor.faulty, died=core.death() is not None)
        self.check_workers()
        core.stop()
        self.lives.check_end(num_poison)

    def dissolve(self) -> None:
        """Its parts hold each other: so they go at once, their memory is used again, and no sweep has to find them."""
        supervision = self.lives._supervision
        parts = [one for one in vars(self.core).values() if hasattr(one, "__dict__")]
        parts += (supervision.manager, supervision, self.lives, self.executor, self.core, self.clock, self)
        for one in parts:
            vars(one).clear()

    def check_workers(self) -> None:
        """No worker was given up that lived and whose answers all came."""
        if self.lives.num_respawns > self.lives.num_deaths + self.executor.num_silenced:
            raise Violation("a worker is given up that has not died, and whose answers all came")


_DEAF = Deaf()
_NO_OPTIONS = NoOptions()
_NO_CONSTRAINTS = BatchConstraints()
_DRAFTS = BatchConstraints(max_tokens_per_step=1 + MAX_DRAFTS)
_ADMISSION = AdmissionLimits(
    vocab_size=VOCAB, runner="runner", features=frozenset(), check_fits=lambda num_prompt_tokens, max_tokens: None
)

"""The start of the workers, phase by phase: every rank at once, each phase with its deadline and its error."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from enginebay.engine.lending import Lender, Loan, check_lender
from enginebay.engine.lookout import Lookout
from enginebay.engine.startup.ground import Ground
from enginebay.engine.startup.plan import Plan
from enginebay.engine.verdicts import busy
from enginebay.errors import EnginebayError, StartFailed, in_words, is_interrupt
from enginebay.interfaces import StartSpec
from enginebay.messages import (
    Ack,
    Call,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    DeviceReady,
    FinishWeightUpdate,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LoadModel,
    MemoryAvailable,
    ModelLoaded,
    Phase,
    PluginIdentity,
    PluginsLoaded,
    Replies,
    StartPayload,
    StartWeightUpdate,
    WorkerInfo,
    WorldPlan,
)
from enginebay.plugins import Hooks
from enginebay.transport import encode_start_payload

__all__ = ["BringUp", "LoadedWorkers", "compare_plugins"]

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.01
"""How often a loan is looked after: the lender is asked when the borrowers are ready, and waits for nothing."""


@dataclass(frozen=True, kw_only=True)
class LoadedWorkers:
    """What the ranks said on the way, in rank order."""

    devices: tuple[DeviceReady, ...]
    models: tuple[ModelLoaded, ...]
    memory: tuple[MemoryAvailable, ...]

    def of_output_rank(self, world: WorldPlan) -> ModelLoaded:
        """What the rank said that answers with tokens."""
        return self.models[[place.rank for place in world.own_places].index(world.output_rank)]

    def tell(self, hooks: Hooks) -> None:
        """Tell the observers who the workers are, and how much memory their devices have."""
        for ready in self.devices:
            hooks.worker_started(ready.worker)
            hooks.memory_snapshot(ready.worker.rank, ready.snapshot)


class BringUp:
    """Takes one group's workers, which are pending, to ready. ``Roster.stop`` is the undo of all of it."""

    def __init__(self, ground: Ground, *, traceparent: str) -> None:
        """For the generation that is current now."""
        self._plan = plan = ground.plan
        self._executor, self._runtime, self._watch = ground.executor, ground.runtime, ground.watch
        self._lookout = Lookout(
            ground.watch,
            ground.executor,
            ground.runtime,
            heartbeat=plan.config.deadlines.heartbeat,
            meanwhile=lambda: ground.watch.meanwhile(),
        )
        self._rendezvous, self._roster = ground.rendezvous, ground.roster
        self._workers: tuple[WorkerInfo, ...] = ()
        self._generation = ground.generation.current
        self._traceparent = traceparent

    def launch(self) -> None:
        """Spawn the workers and wait for every rank's HELLO."""
        plan = self._plan
        incarnations = self._roster.incarnations
        payloads = tuple(
            encode_start_payload(
                StartPayload(
                    incarnation=incarnation,
                    generation=self._generation,
                    place=place,
                    world=plan.world,
                    config=plan.config.model_dump_json(),
                    model=plan.model,
                    runner=plan.runner.plugin.name,
                    block_size=plan.block_size,
                    max_model_len=plan.max_model_len,
                    max_num_seqs=plan.limits.max_num_seqs,
                    max_num_batched_tokens=plan.limits.max_num_batched_tokens,
                    executor_maps_devices=plan.executor.plugin.capabilities.maps_devices,
                    traceparent=self._traceparent,
                    dtype=plan.dtype,
                    cache_dtype=plan.cache_dtype,
                )
            )
            for incarnation, place in zip(incarnations, plan.world.own_places, strict=True)
        )
        spec = StartSpec(
            generation=self._generation,
            world=plan.world,
            payloads=payloads,
            incarnations=incarnations,
            deadline=self._runtime.clock.now() + plan.config.deadlines.start,
            traceparent=self._traceparent,
        )
        self._watch.expect(incarnations)
        self._roster.enter(Phase.STARTING)
        try:
            self._workers = self._executor.start(spec).workers
        except EnginebayError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise StartFailed(
                f"executor '{plan.executor.plugin.name}' ({plan.executor.origin}) did not start: {in_words(error)}"
            ) from error
        self._roster.connected(self._workers)

    def load(self, lender: Lender | None = None) -> LoadedWorkers:
        """Plugins, devices, weights (of the model's folder, or a running group's), and what memory is left."""
        self._roster.enter(Phase.INIT_DEVICE)
        compare_plugins(self._plan, self._call(InitWorker(), PluginsLoaded))
        place = self._rendezvous.open(self._plan.world, self._workers, self._generation)
        devices = self._call(InitDevice(rendezvous=place), DeviceReady)
        self._roster.found([ready.worker for ready in devices])
        self._roster.enter(Phase.LOADING)
        models = self._call(LoadModel(), ModelLoaded) if lender is None else self._borrow(lender)
        self._roster.enter(Phase.WARMUP)
        memory = self._call(DetermineAvailableMemory(), MemoryAvailable)
        return LoadedWorkers(devices=tuple(devices), models=tuple(models), memory=tuple(memory))

    def allocate(self, num_blocks: int) -> None:
        """The KV cache of that many blocks on every rank."""
        self._call(InitializeKVCache(num_blocks=num_blocks), Ack)

    def warm_up(self) -> None:
        """What the first step should not have to wait for."""
        self._call(CompileOrWarmUpModel(), Ack)

    def update_weights(self, path: str, version: str) -> None:
        """Weights of another folder than the model's own."""
        self._call(StartWeightUpdate(path=path), Ack)
        self._call(FinishWeightUpdate(version=version), Ack)

    def _borrow(self, lender: Lender) -> list[ModelLoaded]:
        check_lender(lender, self._plan.runner.plugin)
        ranks = [place.rank for place in self._plan.world.own_places]
        with Loan(lender, self._executor, self._runtime, ranks) as loan:
            models = self._call(LoadModel(peer=loan.rendezvous), ModelLoaded, loan)
            loan.settle(self._runtime.clock.now() + self._plan.config.deadlines.call)
            return models

    def _call(self, call: Call, expected: type[T], loan: Loan | None = None) -> list[T]:
        name = str(call.__struct_config__.tag)
        timeout = self._plan.config.deadlines.load_model
        deadline = self._runtime.clock.now() + timeout
        try:
            sent = self._executor.submit_call(call, deadline=deadline, traceparent=self._traceparent)
            results = self._executor.context.unwrap(self._wait(sent.future, deadline, loan))
        except TimeoutError as error:
            detail = self._lookout.who()
            self._lookout.show_stacks()
            raise StartFailed(
                f"{self._late()} did not finish {name} within {timeout:g} s ([deadlines] load_model)"
                + (f": {detail}" if detail else "")
            ) from error
        typed = [result for result in results if isinstance(result, expected)]
        if len(typed) != len(self._plan.world.own_places):
            kinds = ", ".join(type(result).__name__ for result in results)
            raise StartFailed(f"the workers answered {name} with {kinds or 'nothing'}, not {expected.__name__} each")
        return typed

    def _wait(self, future: Future[Replies], deadline: float, loan: Loan | None) -> Replies:
        """The answers; while they are waited for, a loan is looked after."""
        while loan is not None and not future.done():
            until = self._runtime.clock.now() + _LOOK_SECONDS
            if until >= deadline:
                break
            try:
                return self._watch.wait(self._runtime, future, until)
            except TimeoutError:
                loan.look(deadline)
        return self._lookout.wait(future, deadline)

    def _late(self) -> str:
        """Words for the ranks that are lost, or else for those that are busy."""
        health = self._executor.health()
        late = health.lost_ranks or [rank.rank for rank in busy(health.ranks)]
        return ", ".join(f"rank {rank}" for rank in late) or "the workers"


def compare_plugins(plan: Plan, answers: Sequence[PluginsLoaded]) -> None:
    """Every rank must have loaded what we have loaded: same package, version and options."""
    ours = sorted([plan.runner.identity, *(one.identity for one in plan.worker_extensions)])
    for place, answer in zip(plan.world.own_places, answers, strict=True):
        theirs = sorted(answer.plugins)
        if theirs != ours:
            raise StartFailed(
                f"rank {place.rank} loaded {_named(theirs)}, but the engine has {_named(ours)}: "
                "every process must have the same packages, versions and options"
            )


def _named(plugins: Sequence[PluginIdentity]) -> str:
    return (
        ", ".join(f"{p.kind} '{p.name}' ({p.package} {p.version}, options {p.options})" for p in plugins) or "no plugin"
    )

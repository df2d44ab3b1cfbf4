"""What one group stands on: made before its workers are, and shared by its start, its core and each rebirth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from enginebay.engine.life import Life
from enginebay.engine.probes import Probes
from enginebay.engine.replies import Generation
from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.startup._accelerators import device_of_slots
from enginebay.engine.startup.plan import Plan
from enginebay.engine.startup.rendezvous import Rendezvous
from enginebay.engine.supervision import Supervision
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import EnginebayError, PluginBroken, in_words, is_interrupt
from enginebay.interfaces import Executor, ExecutorContext, Finding, WorkerExit
from enginebay.plugins import Hooks
from enginebay.runfolder import LazyRunFolder
from enginebay.runtime import Runtime
from enginebay.transport import encode, unwrap

__all__ = ["Ground", "lay_ground"]


@dataclass(frozen=True, kw_only=True)
class Ground:
    """One group's plan and seams, its executor, and what is true of it whatever workers it has.

    ``release`` gives back what was taken in the executor's name; ``at_end`` what the group has besides.
    """

    plan: Plan
    runtime: Runtime
    hooks: Hooks
    executor: Executor[Any]
    rendezvous: Rendezvous
    release: Callable[[], None]
    generation: Generation
    watch: WorkerWatch
    roster: Roster
    life: Life = field(default_factory=Life)
    at_end: Callable[[], None] = lambda: None

    def end(self) -> None:
        """The group has ended, and its workers before."""
        try:
            self.release()
        finally:
            self.at_end()


def lay_ground(
    plan: Plan, runtime: Runtime, hooks: Hooks, supervision: Supervision, *, generation: int = 0
) -> tuple[Ground, Executor[Any]]:
    """The ground of a group, and the executor as its plugin made it, before extensions wrapped it. Nothing runs yet.

    ``generation`` is the first that its workers have.
    """
    numbers, watch, folder = Generation(generation), WorkerWatch(), LazyRunFolder()
    able = plan.executor.plugin.capabilities
    here = not able.multi_node or able.every_rank_schedules
    devices = plan.runner.plugin.capabilities.devices
    slots = slots_of(plan.world, device_of_slots(plan.config.device.kind, devices, here=here))
    probes = Probes(runtime, hooks, supervision.faults_of_probes)
    roster = Roster(supervision, slots, runtime.entropy, folder.remains, here=here, probes=probes)

    def record(kind: str, name: str, probe: Callable[[], Finding] | None = None) -> None:
        folder.record(kind, name)
        if probe is not None:
            probes.record(f"{kind} {name}", probe)

    def exited(worker_exit: WorkerExit) -> None:
        roster.exited(worker_exit)  # first: the watch wakes who reads it
        watch.exited(worker_exit)

    context: ExecutorContext[Any] = ExecutorContext(
        options=plan.executor.options,
        runtime=runtime,
        encode=encode,
        unwrap=unwrap,
        next_call_id=numbers.next_call_id,
        generation=lambda: numbers.current,
        worker_exited=exited,
        record_resource=record,
        run_folder=folder.path,
        call_timeout=plan.config.deadlines.call,
        heartbeat_timeout=plan.config.deadlines.heartbeat,
    )
    rendezvous = Rendezvous(folder.path, runtime.entropy)

    def release() -> None:
        rendezvous.close()
        folder.close()

    try:
        made = _made(plan, context)
        try:
            executor = hooks.wrap_executor(made, context)
        except BaseException:
            made.stop(runtime.clock.now() + plan.config.deadlines.stop)
            raise
    except BaseException:
        release()
        raise
    ground = Ground(
        plan=plan,
        runtime=runtime,
        hooks=hooks,
        executor=executor,
        rendezvous=rendezvous,
        release=release,
        generation=numbers,
        watch=watch,
        roster=roster,
    )
    return ground, made


def _made(plan: Plan, context: ExecutorContext[Any]) -> Executor[Any]:
    """What the plugin's factory makes of it; raises ``PluginBroken`` for one that raises, or makes something else."""
    who = f"executor '{plan.executor.plugin.name}' ({plan.executor.origin}) could not be made: its factory"
    try:
        made: object = plan.executor.plugin.factory(context)
    except EnginebayError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PluginBroken(f"{who} raised {in_words(error)}") from error
    if not isinstance(made, Executor):
        raise PluginBroken(f"{who} returned {type(made).__name__}, and an Executor is expected")
    return made

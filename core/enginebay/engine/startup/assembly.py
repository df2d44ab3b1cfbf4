"""From a plan to a running core: executor, workers, KV cache, scheduler, core; each undone after a failure half-way."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace

from enginebay import tracing
from enginebay.engine.core import EngineCore
from enginebay.engine.lending import Lender
from enginebay.engine.parts import Observers
from enginebay.engine.startup.agreed import agreement_of, terms_of
from enginebay.engine.startup.bringup import BringUp, LoadedWorkers
from enginebay.engine.startup.core_parts import core_parts
from enginebay.engine.startup.ground import lay_ground
from enginebay.engine.startup.plan import Plan
from enginebay.engine.startup.standing import make_ready
from enginebay.engine.startup.supervise import supervise
from enginebay.engine.startup.texts import read_tokenizer
from enginebay.engine.supervision import Supervision
from enginebay.engine.swap.rebuild import Frame, Rebuild
from enginebay.errors import StartFailed, WorkerHung, WorkerLost
from enginebay.interfaces import Executor
from enginebay.plugins import PluginHost
from enginebay.runtime import Runtime
from enginebay.text import Tokenizer

__all__ = ["Alongside", "start", "start_in"]

_log = logging.getLogger(__name__)


def start(plan: Plan, runtime: Runtime, host: PluginHost) -> EngineCore:
    """Start the engine that ``plan`` describes; returns when its workers are warm.

    Raises what the plan's parts raise: ``StartFailed`` (exit code 3) with rank and phase, or a ``ConfigError`` (2)
    that only the workers could find; whatever was started has then been stopped.
    """
    with tracing.span(tracing.ENGINE_START) as span:
        return start_in(span, plan, runtime, host, read_tokenizer(plan))


@dataclass(frozen=True, kw_only=True)
class Alongside:
    """What the start of one group has to do with those beside it.

    ``launched`` is told of the executor when its workers are connected, and raises when the start is given up.
    ``observers`` hear of the core's steps, requests and end; of the engine's start others tell, and others end its
    ``supervision``.
    """

    supervision: Supervision
    launched: Callable[[Executor[Any]], None]
    observers: Observers


def start_in(
    span: trace.Span,
    plan: Plan,
    runtime: Runtime,
    host: PluginHost,
    tokenizer: Tokenizer,
    *,
    alongside: Alongside | None = None,
    lender: Lender | None = None,
) -> EngineCore:
    """The same within the span of a start that began earlier; ``tokenizer`` is ``read_tokenizer(plan)``.

    ``alongside``: the group is one of several, which ``plan.world`` says. ``lender``: a running group of the same plan
    that gives its weights, so that no file of them is read.
    """
    span.set_attributes(_attributes(plan))
    _log.info("runner %s", next(f"{item.value}: {item.why}" for item in plan.in_force if item.name == "runner"))
    supervision = supervise(plan, runtime) if alongside is None else alongside.supervision
    try:
        ground, made = lay_ground(plan, runtime, host.hooks, supervision)
    except BaseException:
        if alongside is None:
            supervision.stop()
        raise
    if alongside is None:
        ground = dataclasses.replace(ground, at_end=supervision.stop)
    if lender is not None:
        ground.life.have_weights(path=lender.life.path, version=lender.life.version, given=lender.life.given)
    try:
        with tracing.span(tracing.EXECUTOR_LAUNCH, {tracing.WORLD_SIZE: len(plan.world.ranks)}) as launch:
            ground.roster.renew(ground.generation.current)
            bring_up = BringUp(ground, traceparent=tracing.traceparent(launch))
            bring_up.launch()
            if alongside is not None:
                alongside.launched(ground.executor)
            agreement = agreement_of(plan, made, runtime.clock)  # wrappers stand before calls on workers
            if agreement is not None:
                by = runtime.clock.now() + plan.config.deadlines.start
                agreed = agreement.open(runtime.entropy, terms_of(plan), by)
                ground = dataclasses.replace(ground, runtime=dataclasses.replace(runtime, entropy=agreed))
            standing = make_ready(ground, bring_up, agreement, lender)
        observers = host.hooks if alongside is None else alongside.observers
        parts = core_parts(ground, standing, tokenizer, observers=observers, agreement=agreement)
        if agreement is None:
            frame = Frame(tokenizer=tokenizer, host=host, observers=observers, supervision=supervision)
            parts = dataclasses.replace(parts, rebuild=Rebuild(frame, ground, standing))
        core = EngineCore(parts)
        span.set_attributes({tracing.KV_BLOCKS: standing.budget.num_blocks, **_kernel(standing.workers)})
    except BaseException as error:
        ground.roster.failed(error)
        try:
            ground.roster.stop(ground.executor, runtime.clock.now() + plan.config.deadlines.stop)
        finally:
            ground.end()
        if isinstance(error, (WorkerLost, WorkerHung)):  # there was no engine yet that could have lost one
            raise StartFailed(f"the start failed: {error}") from error
        raise
    if alongside is None:
        host.hooks.engine_started(core.in_force)
    return core


def _attributes(plan: Plan) -> dict[str, str | int]:
    in_force = {item.name: item.value for item in plan.in_force}
    return {
        tracing.EXECUTOR: f"{plan.executor.plugin.name} ({plan.executor.origin})",
        tracing.RUNNER: f"{plan.runner.plugin.name} ({plan.runner.origin})",
        tracing.SCHEDULER: f"{plan.scheduler.plugin.name} ({plan.scheduler.origin})",
        tracing.OVERLAP: in_force.get("overlap", "off"),
        tracing.GRAPH: in_force.get("execution", "eager"),
        tracing.WORLD_SIZE: len(plan.world.ranks),
        tracing.MODEL: plan.model.name,
    }


def _kernel(workers: LoadedWorkers) -> dict[str, str]:
    attention = workers.models[0].in_force.get("attention")
    return {} if attention is None else {tracing.ATTENTION: attention}

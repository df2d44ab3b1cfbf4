"""From a plan to a running core: executor, workers, KV cache, scheduler, core; each undone after a failure half-way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace

from enginebay import tracing
from enginebay.engine.admission import AdmissionLimits
from enginebay.engine.bringup import BringUp, LoadedWorkers
from enginebay.engine.budget import BlockBudget, block_budget, longest_request
from enginebay.engine.commit import Detokenizer
from enginebay.engine.core import EngineCore
from enginebay.engine.parts import CoreParts
from enginebay.engine.plan import Plan
from enginebay.engine.replies import Generation
from enginebay.engine.respawn import Respawn
from enginebay.engine.texts import bad_word_ids, read_tokenizer
from enginebay.engine.watch import WorkerWatch
from enginebay.interfaces import Executor, ExecutorContext, Plugin, Scheduler, SchedulerLimits
from enginebay.kvcache import KVCacheManager
from enginebay.plugins import PluginHost
from enginebay.runtime import Runtime
from enginebay.scheduling import check_fits, make_scheduler
from enginebay.text import IncrementalDetokenizer, Tokenizer
from enginebay.transport import encode, unwrap

__all__ = ["start", "start_in"]


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """The size of the KV cache, as far as ``check_fits`` asks."""

    num_blocks: int
    block_size: int


def start(plan: Plan, runtime: Runtime, host: PluginHost) -> EngineCore:
    """Start the engine that ``plan`` describes; returns when its workers are warm.

    Raises what the plan's parts raise: ``StartFailed`` (exit code 3) with rank and phase, or a ``ConfigError`` (2)
    that only the workers could find; whatever was started has then been stopped.
    """
    with tracing.span(tracing.ENGINE_START) as span:
        return start_in(span, plan, runtime, host, read_tokenizer(plan))


def start_in(span: trace.Span, plan: Plan, runtime: Runtime, host: PluginHost, tokenizer: Tokenizer) -> EngineCore:
    """The same within the span of a start that began earlier; ``tokenizer`` is ``read_tokenizer(plan)``."""
    span.set_attributes(_attributes(plan))
    generation, watch = Generation(), WorkerWatch()
    context = _executor_context(plan, runtime, generation, watch)
    executor: Executor[Any] | None = None
    try:
        made = plan.executor.plugin.factory(context)
        executor = made
        executor = host.hooks.wrap_executor(made, context)
        with tracing.span(tracing.EXECUTOR_LAUNCH, {tracing.WORLD_SIZE: len(plan.world.ranks)}) as launch:
            bring_up = BringUp(
                plan,
                executor,
                runtime,
                watch=watch,
                generation=generation.current,
                traceparent=tracing.traceparent(launch),
            )
            workers, budget, longest, in_force = _bring_up(plan, bring_up, host)
        respawn: Callable[[], None] | None = None
        if plan.executor.plugin.capabilities.restartable:
            respawn = Respawn(plan, executor, runtime, host.hooks, generation, watch, workers, budget.num_blocks)
        core = _core(plan, runtime, host, executor, generation, watch, tokenizer, budget, longest, in_force, respawn)
        span.set_attributes({tracing.KV_BLOCKS: budget.num_blocks, **_kernel(workers)})
    except BaseException:
        if executor is not None:
            executor.stop(runtime.clock.now() + plan.config.deadlines.stop)
        raise
    host.hooks.engine_started(core.in_force)
    return core


def _bring_up(
    plan: Plan, bring_up: BringUp, host: PluginHost
) -> tuple[LoadedWorkers, BlockBudget, int, dict[str, str]]:
    bring_up.launch()
    workers = bring_up.load()
    workers.tell(host.hooks)
    budget = block_budget(
        plan.config.cache,
        [model.kv_cache_spec for model in workers.models],
        workers.memory,
        reserved_blocks=plan.constraints.reserved_blocks,
        max_num_seqs=plan.limits.max_num_seqs,
        max_model_len=plan.max_model_len,
    )
    explicit = plan.config.model.max_model_len is not None
    longest, note = longest_request(
        budget, block_size=plan.block_size, max_model_len=plan.max_model_len, explicit=explicit
    )
    in_force = {item.name: item.value for item in plan.in_force}
    in_force |= {"device": ", ".join(dict.fromkeys(ready.worker.device for ready in workers.devices))}
    in_force |= dict(workers.models[plan.world.output_rank].in_force)
    in_force |= {"kv_blocks": f"{budget.num_blocks} ({budget.why})"}
    if note is not None:
        in_force["longest request"] = note
    bring_up.allocate(budget.num_blocks)
    bring_up.warm_up()
    return workers, budget, longest, in_force


def _executor_context(plan: Plan, runtime: Runtime, generation: Generation, watch: WorkerWatch) -> ExecutorContext[Any]:
    # record_resource stays the interface's no-op: nobody reads a manifest before there is something that reclaims
    return ExecutorContext(
        options=plan.executor.options,
        runtime=runtime,
        encode=encode,
        unwrap=unwrap,
        next_call_id=generation.next_call_id,
        generation=lambda: generation.current,
        worker_exited=watch.exited,
        call_timeout=plan.config.deadlines.call,
    )


def _core(
    plan: Plan,
    runtime: Runtime,
    host: PluginHost,
    executor: Executor[Any],
    generation: Generation,
    watch: WorkerWatch,
    tokenizer: Tokenizer,
    budget: BlockBudget,
    longest: int,
    in_force: dict[str, str],
    respawn: Callable[[], None] | None,
) -> EngineCore:
    limits = dataclasses.replace(plan.limits, max_model_len=longest)
    blocks = _Blocks(num_blocks=budget.num_blocks - budget.reserved_blocks, block_size=plan.block_size)

    def fits(num_prompt_tokens: int, max_tokens: int) -> None:
        check_fits(num_prompt_tokens, max_tokens, limits, blocks, plan.constraints)

    def detokenizer(skip_special_tokens: bool) -> Detokenizer:
        return IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    return EngineCore(
        CoreParts(
            executor=executor,
            make_scheduler=lambda: _scheduler(plan, runtime, budget, limits),
            runtime=runtime,
            hooks=host.hooks,
            limits=_admission(plan, fits, tokenizer, longest),
            detokenizer=detokenizer,
            model=plan.model.name,
            scheduler_name=plan.scheduler.name_and_version,
            runner_name=plan.runner.name_and_version,
            executor_name=plan.executor.name_and_version,
            max_tokens_per_step=plan.constraints.max_tokens_per_step,
            eos_token_ids=frozenset(plan.model.eos_token_ids),
            max_model_len=longest,
            generation=generation,
            watch=watch,
            in_force=in_force,
            output_rank=plan.world.output_rank,
            num_ranks=len(plan.world.ranks),
            respawn=respawn,
            step_timeout=plan.config.deadlines.step,
            stop_timeout=plan.config.deadlines.stop,
            request_timeout=plan.config.deadlines.request,
            step_every=plan.config.telemetry.step_every,
        )
    )


def _scheduler(plan: Plan, runtime: Runtime, budget: BlockBudget, limits: SchedulerLimits) -> Scheduler[Any]:
    """An empty scheduler over an empty KV cache of its own."""
    return make_scheduler(
        plan.scheduler.plugin,
        plan.scheduler.options,
        limits=limits,
        constraints=plan.constraints,
        kv_cache=KVCacheManager(
            num_blocks=budget.num_blocks,
            block_size=plan.block_size,
            prefix_caching=plan.prefix_caching,
            reserved_blocks=budget.reserved_blocks,
        ),
        now=runtime.clock.now,
    )


def _admission(plan: Plan, fits: Callable[[int, int], None], tokenizer: Tokenizer, longest: int) -> AdmissionLimits:
    plugins: list[Plugin[Any]] = [plan.executor.plugin, plan.runner.plugin, plan.scheduler.plugin]
    plugins += [extension.plugin for extension in plan.extensions]
    return AdmissionLimits(
        vocab_size=plan.model.vocab_size,
        runner=plan.runner.name_and_version,
        features=plan.runner.plugin.capabilities.features,
        check_fits=fits,
        max_model_len=longest,
        bad_word_ids=bad_word_ids(tokenizer),
        request_extras=tuple((one.name, one.request_extra) for one in plugins if one.request_extra is not None),
    )


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

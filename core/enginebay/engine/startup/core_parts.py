"""A core over workers that stand: the parts that it is put together from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from enginebay.engine.admission.limits import AdmissionLimits, CheckFits
from enginebay.engine.agreement import Agreement
from enginebay.engine.cache import CacheSeat
from enginebay.engine.commit import Detokenizer
from enginebay.engine.grammars import Grammars
from enginebay.engine.parts import CoreParts, Observers
from enginebay.engine.speculation import NgramProposer
from enginebay.engine.startup._launched import why_untimed
from enginebay.engine.startup._overlap import busy_stages
from enginebay.engine.startup.budget import BlockBudget
from enginebay.engine.startup.ground import Ground
from enginebay.engine.startup.plan import Plan
from enginebay.engine.startup.respawn import Respawn
from enginebay.engine.startup.standing import Standing
from enginebay.engine.startup.texts import bad_word_ids
from enginebay.interfaces import Plugin, Propose, Scheduler, SchedulerLimits
from enginebay.kvcache import KVCacheManager
from enginebay.runtime import Runtime
from enginebay.scheduling import make_scheduler
from enginebay.structured import GrammarState, GrammarStore, HelperCompiler
from enginebay.text import IncrementalDetokenizer, Tokenizer

__all__ = ["core_parts"]


def core_parts(
    ground: Ground,
    standing: Standing,
    tokenizer: Tokenizer,
    *,
    observers: Observers,
    agreement: Agreement | None,
    before: CoreParts | None = None,
) -> CoreParts:
    """The parts of a group's core; ``agreement`` where every rank has an engine of its own.

    ``before``: those that they are to take the place of, whose grammars and seat of the KV cache they keep.
    """
    plan, runtime, budget = ground.plan, ground.runtime, standing.budget
    deadlines = plan.config.deadlines
    limits = dataclasses.replace(plan.limits, max_model_len=standing.longest)
    now = runtime.clock.now if agreement is None else lambda: agreement.now
    respawn: Respawn | None = None
    if plan.executor.plugin.capabilities.restartable:
        respawn = Respawn(ground, standing.workers, budget.num_blocks)

    if before is None:
        seat, grammars = _seat(ground), _grammars(plan, runtime, tokenizer, agreed=agreement is not None)
    else:
        seat, grammars = before.cache, before.grammars

    def release() -> None:
        grammars.stop()
        ground.end()

    def detokenizer(skip_special_tokens: bool) -> Detokenizer:
        return IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    return CoreParts(
        executor=ground.executor,
        make_scheduler=lambda: _scheduler(ground, now, budget, limits, seat),
        cache=seat,
        runtime=runtime,
        hooks=observers,
        limits=_admission(plan, limits, budget, tokenizer),
        detokenizer=detokenizer,
        model=plan.model.name,
        scheduler_name=plan.scheduler.name_and_version,
        runner_name=plan.runner.name_and_version,
        executor_name=plan.executor.name_and_version,
        max_tokens_per_step=plan.runner.plugin.capabilities.constraints.max_tokens_per_step,
        depth=plan.depth,
        eos_token_ids=frozenset(plan.model.eos_token_ids),
        max_model_len=standing.longest,
        generation=ground.generation,
        watch=ground.watch,
        roster=ground.roster,
        in_force=standing.in_force(plan),
        output_rank=plan.world.output_rank,
        num_ranks=len(plan.world.own_places),
        respawn=respawn,
        release=release,
        grammars=grammars,
        step_timeout=deadlines.step,
        stop_timeout=deadlines.stop,
        heartbeat=deadlines.heartbeat,
        request_timeout=deadlines.request,
        step_every=plan.config.telemetry.step_every,
        life=ground.life,
        agreement=agreement,
        max_failed_steps=1 if agreement is not None else CoreParts.max_failed_steps,
        runner_capabilities=plan.runner.plugin.capabilities,
        worker_methods={one.plugin.name: one.plugin.methods for one in plan.worker_extensions},
        model_path=plan.model.path,
        call_timeout=deadlines.call,
        load_timeout=deadlines.load_model,
        drain_timeout=deadlines.drain,
        recovery_timeout=deadlines.recovery,
    )


def _grammars(plan: Plan, runtime: Runtime, tokenizer: Tokenizer, *, agreed: bool) -> Grammars:
    """Nothing is loaded before the first request that has a grammar."""
    vocab_size, eos_token_ids = plan.model.vocab_size, frozenset(plan.model.eos_token_ids)
    compiler = HelperCompiler(
        runtime,
        tokenizer=tokenizer.to_json,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        measured=not agreed,
    )

    def result(future: Future[GrammarState]) -> GrammarState:
        return runtime.wait(future, runtime.clock.now())

    store = GrammarStore(compiler, get=result, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    return Grammars(store, agreed=runtime if agreed else None)


def _seat(ground: Ground) -> CacheSeat:
    """Where the caches go; what happens in them is told, if anybody listens."""
    listens = bool(ground.hooks.listeners("enginebay_cache_events"))
    replica = ground.plan.world.data_parallel_index
    return CacheSeat(ground.hooks.cache_events if listens else None, replica=replica)


def _scheduler(
    ground: Ground, now: Callable[[], float], budget: BlockBudget, limits: SchedulerLimits, seat: CacheSeat
) -> Scheduler[Any]:
    """An empty scheduler over an empty KV cache of its own."""
    plan = ground.plan
    cache = KVCacheManager(
        num_blocks=budget.num_blocks,
        block_size=plan.block_size,
        prefix_caching=plan.prefix_caching,
        reserved_blocks=budget.reserved_blocks,
        weights=ground.life.weights_key,
        layout=f"{plan.cache_dtype}, {plan.world.tensor_parallel_size} tensor ranks",
        groups=budget.groups,
        max_step_tokens=budget.max_step_tokens,
        events=seat.events,
    )
    scheduler = make_scheduler(
        plan.scheduler.plugin,
        plan.scheduler.options,
        limits=limits,
        constraints=plan.constraints,
        kv_cache=cache,
        now=now,
        propose=_proposer(plan),
        num_stages=busy_stages(plan.config, plan.depth),
    )
    seat.put(cache)  # now that there is a scheduler for it: one that cannot be made leaves the old one's in its seat
    return scheduler


def _proposer(plan: Plan) -> Propose | None:
    asked = plan.config.speculation
    if not asked.num_tokens:
        return None
    return NgramProposer(shortest=asked.ngram_min, longest=asked.ngram_max, max_tokens=asked.num_tokens)


def _admission(plan: Plan, limits: SchedulerLimits, budget: BlockBudget, tokenizer: Tokenizer) -> AdmissionLimits:
    plugins: list[Plugin[Any]] = [plan.executor.plugin, plan.runner.plugin, plan.scheduler.plugin]
    plugins += [extension.plugin for extension in plan.extensions]
    return AdmissionLimits(
        vocab_size=plan.model.vocab_size,
        runner=plan.runner.name_and_version,
        features=plan.runner.plugin.capabilities.features,
        check_fits=CheckFits(
            limits=limits,
            constraints=plan.constraints,
            num_blocks=budget.num_blocks - budget.reserved_blocks,
            block_size=plan.block_size,
            groups=budget.groups,
            max_step_tokens=budget.max_step_tokens,
        ),
        max_model_len=limits.max_model_len,
        bad_word_ids=bad_word_ids(tokenizer),
        untimed=why_untimed(plan.executor.plugin),
        request_extras=tuple((one.name, one.request_extra) for one in plugins if one.request_extra is not None),
    )

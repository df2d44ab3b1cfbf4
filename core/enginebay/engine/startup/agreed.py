"""What the engines of one world agree on before their first step, taken from the plan of each."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from enginebay.engine.agreement import Agreement
from enginebay.engine.startup.budget import BlockBudget
from enginebay.engine.startup.plan import Plan
from enginebay.interfaces import Executor
from enginebay.runtime import Clock

__all__ = ["agreement_of", "fewest_blocks", "terms_of"]


def agreement_of(plan: Plan, executor: Executor[Any], clock: Clock) -> Agreement | None:
    """What this engine and those of the other ranks agree through; None where it has all ranks itself."""
    if plan.world.own_ranks is None:
        return None
    return Agreement(
        executor.exchange,
        clock,
        rank=plan.world.own_ranks[0],
        every=plan.config.engine.compare_every,
        timeout=plan.config.deadlines.step,
    )


def fewest_blocks(agreement: Agreement, budget: BlockBudget, within: float) -> BlockBudget:
    """The budget with the fewest blocks of all ranks; those that load more slowly have ``within`` seconds."""
    num_blocks, reserved, poorest = agreement.fewest(budget.num_blocks, budget.reserved_blocks, within)
    if (num_blocks, reserved) == (budget.num_blocks, budget.reserved_blocks):
        return budget
    why = f"the fewest of all ranks: those of rank {poorest}"
    return replace(budget, num_blocks=num_blocks, reserved_blocks=reserved, why=why)


def terms_of(plan: Plan) -> dict[str, str]:
    """All that schedules follow from beside the requests, in words; without paths, which may differ among hosts."""
    parts = {"the runner": plan.runner.identity, "the scheduler": plan.scheduler.identity}
    return {
        **{name: f"'{one.name}' ({one.package} {one.version}, options {one.options})" for name, one in parts.items()},
        **{f"[scheduler] {name}": str(value) for name, value in asdict(plan.limits).items()},
        "the model": f"{plan.model.name} ({plan.model.architecture}, {plan.model.vocab_size} tokens)",
        "[model] dtype": plan.dtype,
        "[cache] dtype": plan.cache_dtype,
        "[cache] block_size": str(plan.block_size),
        "[cache] prefix_caching": str(plan.prefix_caching),
        "[scheduler] overlap": f"{plan.depth} steps in flight",
        "[speculation]": str(plan.config.speculation),
        "[engine] batch_invariant": str(plan.config.engine.batch_invariant),
        "[engine] compare_every": str(plan.config.engine.compare_every),
    }

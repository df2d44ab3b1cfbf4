"""Workers that stand: what they said, the KV cache that they have, and what is in force with them."""

from __future__ import annotations

import dataclasses

from enginebay.engine.agreement import Agreement
from enginebay.engine.lending import Lender
from enginebay.engine.startup.agreed import fewest_blocks
from enginebay.engine.startup.bringup import BringUp, LoadedWorkers
from enginebay.engine.startup.budget import BlockBudget, block_budget, longest_request
from enginebay.engine.startup.ground import Ground
from enginebay.engine.startup.plan import Plan
from enginebay.messages import Phase

__all__ = ["Standing", "make_ready"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """Workers that are warm, and the longest request in tokens that fits in their KV cache.

    ``note`` says why that is less than what the model takes, where it is.
    """

    workers: LoadedWorkers
    budget: BlockBudget
    longest: int
    note: str | None = None

    def in_force(self, plan: Plan) -> dict[str, str]:
        """What is in force, as ``check`` prints it: the plan's, and what only the workers knew."""
        said = {item.name: item.value for item in plan.in_force}
        said |= {"device": ", ".join(dict.fromkeys(ready.worker.device for ready in self.workers.devices))}
        said |= dict(self.workers.of_output_rank(plan.world).in_force)
        said |= {"kv_blocks": f"{self.budget.num_blocks} ({self.budget.why})"}
        return (
            said if self.note is None else said | {"longest request": self.note.removeprefix("the longest request is ")}
        )


def make_ready(ground: Ground, bring_up: BringUp, agreement: Agreement | None, lender: Lender | None) -> Standing:
    """Take workers that are connected to ready: weights, KV cache, warm-up."""
    plan = ground.plan
    workers = bring_up.load(lender)
    workers.tell(ground.hooks)
    budget = block_budget(
        plan.config.cache,
        [model.kv_cache_spec for model in workers.models],
        workers.memory,
        reserved_blocks=plan.constraints.reserved_blocks,
        max_num_seqs=plan.limits.max_num_seqs,
        max_model_len=plan.max_model_len,
        max_step_tokens=None if plan.limits.no_evict else plan.depth * plan.limits.max_num_batched_tokens,
    )
    if agreement is not None:
        budget = fewest_blocks(agreement, budget, plan.config.deadlines.load_model)
    explicit = plan.config.model.max_model_len is not None
    longest, note = longest_request(
        budget, block_size=plan.block_size, max_model_len=plan.max_model_len, explicit=explicit
    )
    bring_up.allocate(budget.num_blocks)
    bring_up.warm_up()
    if ground.life.path and lender is None:
        bring_up.update_weights(ground.life.path, ground.life.version)
    ground.roster.enter(Phase.READY)
    return Standing(workers=workers, budget=budget, longest=longest, note=note)

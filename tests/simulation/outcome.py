"""What came of a run of one plan: what it counted, whether all held, and a digest of everything that happened."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import msgspec

from simulation.plan import Plan
from simulation.world import World

__all__ = ["Outcome", "run_plan"]


@dataclass(slots=True)
class Outcome:
    """What a run came to. ``problem`` is "" when every invariant held; ``digest`` is of its whole log."""

    seed: int
    problem: str
    digest: bytes
    requests: int
    tokens: int
    struck: int
    calls: int
    generations: int


def run_plan(plan: Plan) -> Outcome:
    """Run a plan, and say what came of it; nothing is raised."""
    world = World(plan)
    problem = ""
    try:
        world.run()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    world.log.append((problem,))
    outcome = Outcome(
        seed=plan.seed,
        problem=problem,
        digest=sha256(msgspec.msgpack.encode(world.log)).digest()[:8],
        requests=world.clients.num_requests,
        tokens=world.clients.num_tokens,
        struck=world.executor.num_struck + world.lives.num_deaths + world.clients.num_cancelled,
        calls=world.executor.num_calls,
        generations=world.generation.current,
    )
    world.dissolve()
    return outcome

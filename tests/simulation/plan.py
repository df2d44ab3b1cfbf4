"""What one seed means: the engine's size, the requests with their times, and the faults with theirs.

A plan is plain data, so that a failing one can be made smaller piece by piece and kept as JSON.
"""

from __future__ import annotations

from random import Random
from string import ascii_letters
from typing import Any

from msgspec import Struct

__all__ = ["CALL_FAULTS", "EOS", "MAX_MODEL_LEN", "VOCAB", "Fault", "Plan", "Want", "make_plan"]

VOCAB = 53
EOS = 0
MAX_MODEL_LEN = 48


class Want(Struct, kw_only=True):
    """One request: when it comes (fake seconds), what it asks, and at which tick its client cancels it (0: never).

    ``shaped``: it draws under a grammar, so that its steps take two calls. ``poison``: the worker dies of each step
    that it is in.
    """

    at: float
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: bool = False
    prompt_logprobs: bool = False
    priority: int = 0
    salt: str = ""
    timeout: float | None = None
    cancel: int = 0
    shaped: bool = False
    poison: bool = False


class Fault(Struct, kw_only=True):
    """What goes wrong, and when: ``at`` counts calls for faults of a call, ticks for deaths.

    ``late``: the reply takes ``delay`` longer. ``lose``: it never comes. ``repeat``: it comes once more, as the answer
    to the next call. ``swap``: it and the next call's come in each other's place. ``old_generation``, ``other_call``,
    ``other_step``: it says that it is the answer to that, and holds other tokens. ``fail``, ``fail_half``: the worker
    is well and the call failed, before or after it wrote. ``mute``: one request gets no token. ``faulty``: one
    request's logits are NaN. ``die``: the process ends, whatever it was doing; ``delay``: so much later is it seen.
    """

    kind: str
    at: int
    delay: float = 0.0


CALL_FAULTS = (
    "late",
    "lose",
    "repeat",
    "swap",
    "old_generation",
    "other_call",
    "other_step",
    "fail",
    "fail_half",
    "mute",
    "faulty",
)


class Plan(Struct, kw_only=True):
    """One schedule of the simulation."""

    seed: int
    wants: list[Want]
    faults: list[Fault]
    policy: str = "fcfs"
    depth: int = 1
    num_blocks: int = 16
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    chunked: bool = True
    speculates: bool = False
    """Whether tokens are proposed and verified; every third guess is wrong."""
    codec: bool = True
    """Whether calls and answers cross as bytes, through the real codec, or as they are."""
    reader: int = 1
    """The reader takes what waits for it at every so many turns."""
    stages: int = 1
    """The scheduler is told that so many pipeline stages can work at the same time; never more than ``depth``."""
    budget: int = 0
    """So many restarts are allowed, and a start that fails twice in the same way is the end; 0: any number of both."""
    sink_faults: tuple[int, ...] = ()
    """The calls of the status sink that fail, from 1 on."""
    usurped: int = 0
    """At this call the status sink holds a later life of the slot, which another engine has written; 0: at none."""
    stuck: float = 0.0
    """For so many seconds what a stopped worker had taken is not free; after 30 its slot is given up."""


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    uniform = random.random

    def below(most: int) -> int:
        return int(uniform() * most)

    block_size = 2 + below(5)
    documents = [tuple([below(VOCAB) for _ in range(12)]) for _ in range(2)]
    longest = 20 if uniform() < 0.2 else 9
    spread = 0.0 if uniform() < 0.7 else 2.0
    wants = []
    for _ in range((3, 4, 4, 4, 5, 5)[below(6)]):
        prompt = documents[uniform() < 0.25][: 2 + below(11)] + tuple([below(VOCAB) for _ in range(1 + below(3))])
        fancy: dict[str, Any] = {}
        chance = uniform()
        if chance < 0.14:
            fancy["stop"] = (ascii_letters[below(52)],) if uniform() < 0.5 else tuple(ascii_letters[:5])
        elif chance < 0.27:
            fancy["stop_token_ids"] = (below(VOCAB), below(VOCAB))
        elif chance < 0.37:
            fancy["ignore_eos"] = True
        elif chance < 0.5:
            fancy["salt"] = "s"
        elif chance < 0.58:
            fancy["timeout"] = 1.0 + 18.0 * uniform()
        elif chance < 0.72:
            fancy["cancel"] = 1 + below(26)
        elif chance < 0.775:
            fancy["n"] = 2 + below(2)
        elif chance < 0.84:
            fancy["logprobs"] = True
            fancy["prompt_logprobs"] = uniform() < 0.5
        elif chance < 0.88:
            fancy["min_tokens"] = 1 + below(5)
        if uniform() < 0.4 or "n" in fancy:
            fancy["temperature"] = 1.0
            if uniform() < 0.5:
                fancy["seed"] = below(1000)
        wants.append(
            Want(
                at=1.0 + spread * max(0.0, uniform() - 0.5),
                prompt=prompt,
                max_tokens=1 + below(longest) if uniform() < 0.08 else 3 + below(4),
                priority=below(3),
                **fancy,
            )
        )
    faults = []
    for _ in range((1, 1, 1, 2, 2, 2, 2, 2, 3, 3)[below(10)]):
        kind = CALL_FAULTS[below(len(CALL_FAULTS))]
        if uniform() < 0.25:
            seen = 12.5 if uniform() < 0.2 else uniform()  # after the step's deadline, which is 10
            faults.append(Fault(kind="die", at=1 + below(24), delay=seen))
            continue
        delay = 12.0 if uniform() < 0.2 else 3.0 * uniform()  # the step's deadline is 10
        faults.append(Fault(kind=kind, at=below(8), delay=delay))
    depth = (1, 1, 1, 1, 2, 2, 2, 3)[below(8)]
    chance_of_more = uniform()
    if chance_of_more > 0.88:
        for want in wants:
            want.shaped = uniform() < 0.6 and not want.ignore_eos  # which admission refuses together
    if uniform() < 0.06:
        for _ in range(1 if uniform() < 0.8 else 2):
            wants[below(len(wants))].poison = True
        for want in wants:
            want.at += 20.0 * max(0.0, uniform() - 0.5)  # some come while another is suspected
    budget = 1 + below(3) if uniform() < 0.08 else 0
    sink_faults = tuple([1 + below(12) for _ in range(1 + below(6))]) if uniform() < 0.1 else ()
    stuck = (2.0, 10.0, 45.0)[below(3)] if uniform() < 0.04 else 0.0
    needs = [-(-(len(want.prompt) + want.max_tokens) // block_size) for want in wants]
    ample = sum([need * want.n for need, want in zip(needs, wants, strict=True)])
    fewest = max(needs)
    return Plan(
        seed=seed,
        wants=wants,
        faults=faults,
        policy=("fcfs", "fcfs", "priority", "choosy")[below(4)],
        depth=depth,
        num_blocks=fewest + below(6) if uniform() < 0.2 else ample,
        block_size=block_size,
        max_num_seqs=2 + below(5) if uniform() < 0.06 else 10,
        max_num_batched_tokens=(10 + below(30)) if uniform() < 0.16 else 200,
        chunked=True,
        speculates=chance_of_more < 0.12 or chance_of_more > 0.94,
        codec=uniform() < 0.06,
        reader=1 if uniform() < 0.4 else 2 + below(5),
        stages=depth if uniform() < 0.5 else 1,
        budget=budget,
        sink_faults=sink_faults,
        usurped=1 + below(12) if uniform() < 0.04 else 0,
        stuck=stuck,
    )

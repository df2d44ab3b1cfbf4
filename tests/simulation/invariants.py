"""What holds after each event, whatever the faults: of blocks and their owners, of bounds, of streams and ledger.

Events happen only while the core waits or sleeps. So all that the core holds is looked at on both sides of that: as it
sends a step, which is the last thing before it waits, and after each turn, with its commit or void. It cannot change
in between: scheduler, KV cache and ledger are touched by the core's own calls alone. When each is looked at:

- blocks, their counts and their holders: at each send and after each turn (``Blocks``); against writes on their way, at
  each send when several steps may be in flight (``writes_of``); who wrote what stands in a block, at each write and
  read of the worker;
- bounds of a step, its generation, and how many are in flight: at each send;
- gapless offsets, nothing after an end, and only an end after a cancel: at each delta, as it leaves the core;
- what is streamed is what is committed, no deadline is overlooked, the dead leave nothing: after each turn;
- the tokens, texts and log-probabilities: at each read of a client, and whole at the end;
- one live worker and one generation on the device: at each start of a worker, and at each call that reaches it;
- a deadline for every wait: at each wait;
- restarts, convictions, and that who has ended is not said to live: as they happen (``lives``);
- what a sink is told (versions rise, an end stays one, no record of another is touched): at each call (``sinks``);
- nothing is held when nothing is left to do: whenever the core has no work;
- liveness: after each turn, by the fake clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.engine.core import EngineCore
from enginebay.kvcache import KVSequence
from enginebay.messages import SchedulerOutput
from enginebay.scheduling import MechanicsScheduler
from simulation.plan import Plan
from simulation.workers import Violation

__all__ = ["Blocks", "Writes", "check_quiet", "check_refill", "check_requests", "check_schedule", "writes_of"]

Writes = dict[int, Any]
"""Block → the scheduler's record of the request that a step in flight writes there."""


class Blocks:
    """Each block is counted once for each holder; two hold one only while it holds the same beginning of both.

    Holders are the requests that live, and those that ended under a step in flight, which may still write. Who holds
    what just as at the last look is not compared again: tokens are never changed, only added.
    """

    def __init__(self) -> None:
        self._blocks: list[list[int]] = []
        self._refs: list[int] = []
        self._num_free = -1

    def check(self, scheduler: MechanicsScheduler[Any]) -> None:
        """Look at all that is held."""
        state = scheduler._state
        kv = state.kv
        refs, num_free = kv._pool._refs, kv._pool._free._len
        if not state.in_flight and kv._open.keys() != state.requests.keys():
            raise Violation(f"{list(kv._open)} may hold blocks, and {list(state.requests)} live")
        blocks = [sequence.tables[0] for sequence in kv._open.values() if sequence.tables]
        if blocks != self._blocks or refs != self._refs or num_free != self._num_free:
            self._blocks, self._refs, self._num_free = [list(held) for held in blocks], list(refs), num_free
            if num_free != refs.count(0):
                raise Violation(f"{refs.count(0)} of {kv.num_blocks} blocks are held by nobody, {num_free} are free")
            _check_holders(list(kv._open.values()), refs, kv.block_size)


def _check_holders(holders: list[KVSequence], refs: list[int], size: int) -> None:
    held = [0] * len(refs)
    for sequence in holders:
        for block in sequence.blocks:
            held[block] += 1
    if held != refs:
        wrong = {block: pair for block, pair in enumerate(zip(held, refs, strict=True)) if pair[0] != pair[1]}
        raise Violation(f"blocks are (held, counted) {wrong}")
    if max(held) < 2:
        return
    first: dict[int, KVSequence] = {}
    for sequence in holders:
        for index, block in enumerate(sequence.blocks):
            if held[block] < 2:
                continue
            other, end = first.setdefault(block, sequence), (index + 1) * size
            if sequence.blocks.index(block) != index or (
                other is not sequence
                and (
                    other.root != sequence.root
                    or other.blocks[index] != block
                    or min(sequence.num_tokens, other.num_tokens) < end
                    or list(sequence.tokens(0, end)) != list(other.tokens(0, end))
                )
            ):
                raise Violation(f"block {block} belongs to {sequence.request_id} and to {other.request_id}")


def check_refill(scheduler: MechanicsScheduler[Any]) -> None:
    """A fresh scheduler was given its requests in order of arrival; those whose grammars were not ready come later."""
    for shaped in (False, True):
        numbers = [
            record.request.arrival_number
            for record in scheduler._state.requests.values()
            if (record.request.params.structured is not None) is shaped
        ]
        if numbers != sorted(numbers):
            raise Violation(f"the scheduler got its requests in the order {numbers}")


def check_schedule(schedule: SchedulerOutput, plan: Plan) -> None:
    """No step is over a bound."""
    counts = schedule.num_scheduled_tokens
    if len(counts) > plan.max_num_seqs or sum(counts.values()) > plan.max_num_batched_tokens:
        raise Violation(
            f"a step of {counts} is over {plan.max_num_seqs} requests, {plan.max_num_batched_tokens} tokens"
        )


def writes_of(schedule: SchedulerOutput, scheduler: MechanicsScheduler[Any], earlier: list[Writes]) -> Writes:
    """Which blocks a step writes; none of them, and none that it found in the cache, is being written for another."""
    writes: Writes = {}
    state = scheduler._state
    size = state.kv.block_size
    requests, counts = state.requests, schedule.num_scheduled_tokens
    found: list[tuple[int, Any]] = []
    for group in (schedule.new, schedule.resumed, schedule.running):
        for begun in group:
            record = requests[begun.request_id]
            start, blocks = begun.num_computed_tokens, record.sequence.blocks
            for block in blocks[start // size : (start + counts[begun.request_id] - 1) // size + 1]:
                writes[block] = record
            if group is not schedule.running:
                found += [(block, record) for block in blocks[: start // size]]
    for older in earlier:
        for block, record in (*writes.items(), *found):
            if older.get(block, record) is not record:
                raise Violation(
                    f"block {block} goes to {record.request_id} while a step for {older[block].request_id} may write it"
                )
    return writes


def check_requests(core: EngineCore, streams: Mapping[tuple[str, int], Any], began: float) -> None:
    """After a step: what was streamed is what is committed, the dead leave nothing, no deadline is overlooked.

    ``streams`` are the clients' by (id, choice), ``began`` is when the step began.
    """
    requests = core._requests
    for row in requests.ledger:
        sent = streams[row.parent_id or row.request_id, row.choice].num_sent
        if sent != len(row.committed):
            raise Violation(f"{row.request_id}: {sent} tokens are streamed, {len(row.committed)} committed")
        if row.deadline is not None and row.deadline <= began:
            raise Violation(f"{row.request_id} lives at {began}, after its deadline {row.deadline}")
    lives = requests._live
    if len(lives.begun) + len(lives._waiting) != len(requests.ledger):
        raise Violation("rows and their companions are not of one number")


def check_quiet(core: EngineCore, scheduler: MechanicsScheduler[Any]) -> None:
    """When nothing is left to do: no block is held, no row lives, and no map keeps a dead one."""
    kv = scheduler._state.kv
    if kv.num_free_blocks != kv.num_blocks:
        raise Violation(f"{kv.num_blocks - kv.num_free_blocks} blocks are held by nobody")
    kept: dict[str, Any] = {}
    for owner in (core._requests, core._requests.ledger, scheduler._state):
        kept |= {name: value for name, value in vars(owner).items() if isinstance(value, dict) and value}
    kept |= {live.row.request_id: live for live in core._requests._live}
    if kept or len(core._requests) or kv._open:
        raise Violation(f"kept when nothing is left: {kept}, {len(core._requests)} rows, {list(kv._open)}")

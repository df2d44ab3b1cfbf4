"""What holds after each event, whatever the faults: of blocks and their owners, of bounds, of streams and ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.engine.core import EngineCore
from enginebay.messages import SchedulerOutput
from enginebay.scheduling import MechanicsScheduler
from enginebay.scheduling._record import Status
from simulation.plan import Plan
from simulation.workers import Violation

__all__ = ["Writes", "check_blocks", "check_quiet", "check_refill", "check_requests", "check_schedule", "writes_of"]

Writes = dict[int, Any]
"""Block → the scheduler's record of the request that a step in flight writes there."""


def check_blocks(scheduler: MechanicsScheduler[Any]) -> None:
    """Each block is counted once for each live holder; two hold one only while it holds the same beginning of both."""
    state = scheduler._state
    kv = state.kv
    records = list(state.requests.values())
    if state.in_flight:  # those that ended keep their blocks until the last step that may write them is done
        ended = [row[0] for rows in state.in_flight.values() for row in rows if row[0].status is Status.FINISHED]
        records += dict.fromkeys(ended)
    held = [block for record in records for block in record.sequence.blocks]
    refs = kv.pool._refs
    holders = set(held)
    if sum(refs) != len(held) or (held and min(map(refs.__getitem__, held)) < 1):
        raise Violation(f"blocks are held as {sorted(held)}, and counted as {refs}")
    if kv.num_free_blocks != kv.num_blocks - len(holders):
        raise Violation(f"{len(holders)} of {kv.num_blocks} blocks are held, and {kv.num_free_blocks} are free")
    if len(holders) != len(held):
        _check_shared(records, refs, kv.block_size)
    for record in state.requests.values():
        if record.placeholders < 0 or record.in_flight < 0:
            raise Violation(f"{record.request_id} has {record.placeholders} placeholders, {record.in_flight} steps")


def _check_shared(records: list[Any], refs: list[int], size: int) -> None:
    first: dict[int, Any] = {}
    counts: dict[int, int] = {}
    for record in records:
        sequence = record.sequence
        for index, block in enumerate(sequence.blocks):
            other = first.setdefault(block, sequence)
            if other is sequence:
                counts[block] = counts.get(block, 0) + 1
                continue
            counts[block] += 1
            end = (index + 1) * size
            if (
                other.root != sequence.root
                or other.blocks[index] != block
                or min(sequence.num_tokens, other.num_tokens) < end
                or list(sequence.tokens(0, end)) != list(other.tokens(0, end))
            ):
                raise Violation(f"block {block} belongs to {sequence.request_id} and to {other.request_id}")
    wrong = {block: (count, refs[block]) for block, count in counts.items() if refs[block] != count}
    if wrong:
        raise Violation(f"blocks that are shared are (held, counted) {wrong}")


def check_refill(scheduler: MechanicsScheduler[Any]) -> None:
    """A fresh scheduler was given its requests in order of arrival."""
    numbers = [record.request.arrival_number for record in scheduler._state.requests.values()]
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
    if len(requests._texts) != len(requests.ledger) or len(requests._timelines) != len(requests.ledger):
        raise Violation("rows and their companions are not of one number")


def check_quiet(core: EngineCore, scheduler: MechanicsScheduler[Any]) -> None:
    """When nothing is left to do: no block is held, no row lives, and no map keeps a dead one."""
    check_blocks(scheduler)
    kv = scheduler._state.kv
    if kv.num_free_blocks != kv.num_blocks:
        raise Violation(f"{kv.num_blocks - kv.num_free_blocks} blocks are held by nobody")
    kept: dict[str, Any] = {}
    for owner in (core._requests, core._requests.ledger, scheduler._state):
        kept |= {name: value for name, value in vars(owner).items() if isinstance(value, dict) and value}
    if kept or len(core._requests) or kv._open:
        raise Violation(f"kept when nothing is left: {kept}, {len(core._requests)} rows, {list(kv._open)}")

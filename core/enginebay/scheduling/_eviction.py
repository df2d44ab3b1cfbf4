"""Who gives way when blocks run out: preemption by recompute, with a bound on how often it may be for nothing."""

from __future__ import annotations

from enginebay.scheduling._draft import Draft
from enginebay.scheduling._record import PREEMPTED, Record
from enginebay.scheduling._state import State

FRUITLESS_BOUND = 3
"""After so many preemptions without a token in between, a request is no victim any more, one such at a time.

Whatever the policy says, somebody so finishes: two that cannot both fit do not preempt each other for ever.
"""


def make_room(state: State, record: Record, num_tokens: int, draft: Draft) -> tuple[tuple[int, ...], ...] | None:
    """Blocks until ``num_tokens`` of a running request have room, at the cost of others or of itself; None: not now."""
    while True:
        blocks = state.kv.extend(record.sequence, num_tokens)
        if blocks is not None:
            return blocks
        victim = _ask_for_victim(state, record)
        if victim is None:
            draft.blocked = True
            return None
        preempt(state, victim, draft)
        if victim is record:
            return None


def preempt(state: State, record: Record, draft: Draft | None = None) -> None:
    """Take a running request's blocks; it goes back to the waiting line, and keeps what it has put out."""
    assert record.in_flight == 0, f"request {record.request_id} is preempted while a step of it is in flight"
    if draft is not None:
        draft.give_back(record)
        draft.gave_way = True
    del state.running[record.request_id]
    state.kv.free(record.sequence)
    record.status = PREEMPTED
    record.num_computed = 0
    record.num_preemptions += 1
    record.fruitless += 1
    state.num_preemptions += 1
    state.preempted_unsaid.append(record.request_id)
    state.line.put_back(record)


def force(state: State, draft: Draft) -> bool:
    """Preempt the last that may be, unasked: nothing else would ever run again. False when nobody is left."""
    candidates = _candidates(state)
    if len(state.running) < 2 or not candidates:
        return False
    preempt(state, candidates[-1], draft)
    return True


def _ask_for_victim(state: State, record: Record) -> Record | None:
    candidates = _candidates(state)
    if not candidates or (len(candidates) == 1 and candidates[0] is record):
        return None  # giving way to itself would help nobody: it waits with what it holds
    index = state.door.victim(candidates, record)
    return None if index is None else candidates[index]


def _candidates(state: State) -> list[Record]:
    """Running requests that may be preempted: no step in flight writes to their blocks, and none is spared."""
    spared: Record | None = None
    for record in state.running.values():
        if record.fruitless >= FRUITLESS_BOUND and (spared is None or record.order < spared.order):
            spared = record
    return [record for record in state.running.values() if record.in_flight == 0 and record is not spared]

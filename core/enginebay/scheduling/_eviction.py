"""Who gives way when blocks or places run out: preemption by recompute, with bounds on how often it is for nothing."""

from __future__ import annotations

from enginebay.scheduling._draft import Draft
from enginebay.scheduling._record import PREEMPTED, Record
from enginebay.scheduling._state import State

FRUITLESS_BOUND = 3
"""After so many preemptions without a token in between, a request is no victim any more, one such at a time.

Whatever the policy says, somebody so finishes: two that cannot both fit do not preempt each other for ever.
"""


def make_room(state: State, record: Record, num_tokens: int, draft: Draft) -> bool:
    """Get blocks until ``num_tokens`` of a running request have room, at others' cost or its own; False: not now."""
    while True:
        blocks = state.kv.extend(record.sequence, num_tokens)
        if blocks is not None:
            record.got_blocks(blocks)
            return True
        candidates = _candidates(state)
        if not candidates or (len(candidates) == 1 and candidates[0] is record):
            victim = None  # giving way to itself would help nobody: it waits with what it holds
        else:
            victim = _ask(state, candidates, record)
        if victim is None or not _take_from(state, victim, draft):
            draft.blocked = True
            return False
        if victim is record:
            return False


def make_way(state: State, record: Record, draft: Draft) -> bool:
    """One running request less for the sake of ``record``, which waits; False: nobody gives way to it in this step.

    Who gave way before and has put out no token since is spared, and so is who starts in this very step: an urgent
    request costs each of the others at most one start, and they get on between two of them.
    """
    candidates = [one for one in _candidates(state) if not one.fruitless and one not in draft.admitted]
    victim = _ask(state, candidates, record) if candidates else None
    if victim is None:
        if not draft.admitted and not state.door.window:  # with a window, a policy's mind moves with time
            state.refused = record
        return False
    return _take_from(state, victim, draft)


def preempt(state: State, record: Record, draft: Draft | None = None) -> None:
    """Take a running request's blocks; it goes back to the waiting line, and keeps what it has put out."""
    assert record.in_flight == 0, f"request {record.request_id} is preempted while a step of it is in flight"
    if draft is not None:
        draft.give_back(record)
        draft.gave_way = True
    del state.running[record.request_id]
    state.refused = None
    state.kv.free(record.sequence)
    record.status = PREEMPTED
    record.num_computed = 0
    record.num_acked = 0
    record.num_preemptions += 1
    record.fruitless += 1
    state.num_preemptions += 1
    state.preempted_unsaid.append(record.request_id)
    state.line.put_back(record)
    state.gate.open(record)


def force(state: State, draft: Draft) -> bool:
    """Preempt the last that may be, unasked: nothing else would ever run again. False when nobody is left."""
    candidates = _candidates(state)
    if len(state.running) < 2 or not candidates:
        return False
    preempt(state, candidates[-1], draft)
    return True


def _ask(state: State, candidates: list[Record], needed: Record) -> Record | None:
    index = state.door.victim(candidates, needed)
    return None if index is None else candidates[index]


def _take_from(state: State, victim: Record, draft: Draft) -> bool:
    """Preempt the victim. While a step of it is in flight it stands still instead, so that it can give way soon."""
    if victim.in_flight:
        draft.stand_still(victim)
        return False
    preempt(state, victim, draft)
    return True


def _candidates(state: State) -> list[Record]:
    """Running requests that may be preempted: all but one, if one was for nothing too often."""
    spared: Record | None = None
    for record in state.running.values():
        if record.fruitless >= FRUITLESS_BOUND and (spared is None or record.order < spared.order):
            spared = record
    return [record for record in state.running.values() if record is not spared]

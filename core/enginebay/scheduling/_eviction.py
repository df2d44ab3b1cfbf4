"""Who gives way when blocks or places run out: preemption by recompute, with bounds on how often it is for nothing."""

from __future__ import annotations

from enginebay.kvcache import PrefixHit
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._record import PREEMPTED, Record
from enginebay.scheduling._state import State
from enginebay.scheduling._victims import Victims

FRUITLESS_BOUND = 3
"""After so many preemptions without a token in between, a request is no victim any more, one such at a time.

Whatever the policy says, somebody so finishes: two that cannot both fit do not preempt each other for ever.
"""


def make_room(state: State, record: Record, num_tokens: int, draft: Draft) -> bool:
    """Get blocks until ``num_tokens`` of a running request have room, at others' cost or its own; False: not now."""
    blocks = state.kv.extend(record.sequence, num_tokens)
    if blocks is None:
        victims = _choose(state, record, num_tokens)
        if victims is None or not stand_ready(victims, draft):
            draft.blocked = True
            return False
        preempt_all(state, victims, draft)
        if record in victims:
            return False
        blocks = state.kv.extend(record.sequence, num_tokens)
        assert blocks is not None, f"others gave way to request {record.request_id}, and it has no room"
    record.got_blocks(blocks)
    return True


def _choose(state: State, record: Record, num_tokens: int) -> Victims | None:
    """Who gives way to a running request: enough others, or itself alone; None: nobody, for they are not enough."""
    kv, victims = state.kv, Victims(state.kv, PrefixHit())
    missing = sum(max(0, kv.blocks_for(num_tokens) - len(table)) for table in record.sequence.tables)
    candidates = _candidates(state)
    while victims.freed + kv.num_free_blocks < missing:
        candidates = [one for one in candidates if one not in victims]
        if not candidates or (len(candidates) == 1 and candidates[0] is record):
            return None  # giving way to itself would help nobody: it waits with what it holds
        victim = _ask(state, candidates, record)
        if victim is None:
            return None
        if victim is record:
            victims = Victims(kv, PrefixHit())
            victims.add(record)
            break
        victims.add(victim)
    return victims


def choose_another(state: State, record: Record, chosen: Victims | None, draft: Draft) -> Record | None:
    """Who else is to give way for the sake of ``record``, which waits; None: nobody gives way in this step.

    Who gave way before and has put out no token since is spared, and so is who starts in this very step: an urgent
    request costs each of the others at most one start, and they get on between two of them.
    """
    candidates = [one for one in _candidates(state) if not one.fruitless and one not in draft.admitted]
    if chosen is not None:
        candidates = [one for one in candidates if one not in chosen]
    victim = _ask(state, candidates, record) if candidates else None
    if victim is None and not draft.admitted and (chosen is not None or not state.door.window):
        state.refused = record  # with a window, a policy's mind moves with time: it is asked again for the first one
    return victim


def stand_ready(victims: Victims, draft: Draft) -> bool:
    """Whether all of them can give way now. While a step of one is in flight all stand still, so that they soon can."""
    if any(victim.in_flight for victim in victims):
        for victim in victims:
            draft.stand_still(victim)
        return False
    return True


def preempt_all(state: State, victims: Victims, draft: Draft) -> None:
    """They give way, in the order in which they were chosen."""
    for victim in victims:
        preempt(state, victim, draft)


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


def _candidates(state: State) -> list[Record]:
    """Running requests that may be preempted: all but one, if one was for nothing too often."""
    spared: Record | None = None
    for record in state.running.values():
        if record.fruitless >= FRUITLESS_BOUND and (spared is None or record.order < spared.order):
            spared = record
    return [record for record in state.running.values() if record is not spared]

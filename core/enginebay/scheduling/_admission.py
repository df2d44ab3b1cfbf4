"""Who starts: the head of the waiting line, for as long as tokens, places and blocks last."""

from __future__ import annotations

from typing import NamedTuple

from enginebay.interfaces import PolicyState
from enginebay.kvcache import PrefixHit
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._eviction import choose_another, preempt_all, stand_ready
from enginebay.scheduling._record import RUNNING, Record
from enginebay.scheduling._state import State
from enginebay.scheduling._victims import Victims


def admit(state: State, draft: Draft) -> None:
    """Start who waits, in the line's order. Nobody overtakes the head of the line."""
    if draft.gave_way:
        return  # the room just made would go to the next in line
    while draft.tokens_left > 0 and draft.prefills_left > 0 and not draft.gave_way:
        full = len(state.running) >= state.bounds.seqs
        if full and not _may_take(state):
            break
        record = state.line.head()
        if record is None or (full and record is state.refused) or not _start(state, record, draft):
            break


def _may_take(state: State) -> bool:
    """Whether running requests give way to waiting ones, if the policy says so."""
    return state.door.preempts_running and not state.bounds.no_evict


class _Plan(NamedTuple):
    """How a request can start: with ``tokens`` after ``hit``, and blocks for ``room`` tokens, once victims gave way."""

    hit: PrefixHit
    tokens: int
    room: int
    victims: Victims | None


def _start(state: State, record: Record, draft: Draft) -> bool:
    plan = _plan(state, record, draft)
    if plan is None or (plan.victims is not None and not stand_ready(plan.victims, draft)):
        return False
    if not state.door.admit(record, lambda: _policy_state(state, draft, plan.victims)):
        return False
    hit = plan.hit
    if plan.victims is not None:
        preempt_all(state, plan.victims, draft)
        hit = _lookup(state, record)  # the same blocks, of which more are idle now
    allocated = state.kv.allocate(record.sequence, hit, plan.room, count=not record.num_preemptions)
    assert allocated, f"request {record.request_id} starts, and has no room"
    state.line.take(record)
    record.status = RUNNING
    record.prefill_until = record.num_tokens
    record.num_acked = hit.num_tokens
    state.running[record.request_id] = record
    state.prefilling = True
    state.refused = None
    draft.start(record, plan.tokens, hit)
    state.gate.look(record)
    return True


def _plan(state: State, record: Record, draft: Draft) -> _Plan | None:
    """What it takes to start this request; None: it cannot start now.

    Nobody gives way before it is known that all who would are enough.
    """
    bounds, kv = state.bounds, state.kv
    hit = _lookup(state, record)
    start, todo, others = hit.num_tokens, record.num_tokens - hit.num_tokens, state.line.num_ready - 1
    running, freed = len(state.running), 0
    victims: Victims | None = None
    tokens_left, context_left = draft.tokens_left, draft.context_left
    while True:
        tokens = bounds.chunk(start, todo, tokens_left=tokens_left, context_left=context_left, others_wait=others > 0)
        if not tokens:
            return None
        room = _room(state, record, start + tokens)
        keep_free = (bounds.watermark if running else 0) - freed
        if running < bounds.seqs and kv.has_room(hit, room, keep_free=keep_free):
            return _Plan(hit, tokens, room, victims)
        if not _may_take(state) or record is state.refused:
            return None
        victim = choose_another(state, record, victims, draft)
        if victim is None:
            return None
        if victims is None:
            victims = Victims(kv, hit)
        victims.add(victim)
        tokens_left, context_left = draft.left_without(victims)
        others, running, freed = others + 1, running - 1, victims.freed


def _lookup(state: State, record: Record) -> PrefixHit:
    return state.kv.lookup(record.sequence) if state.bounds.prefix_caching else PrefixHit()


def _room(state: State, record: Record, num_tokens: int) -> int:
    """The tokens for which an admitted request gets blocks at once, of which ``num_tokens`` are needed now."""
    if state.bounds.no_evict:
        return max(record.num_tokens, record.max_total - 1)
    if state.bounds.whole_prompt or record.num_preemptions:  # started again: only when it need not give way at once
        return record.num_tokens
    return num_tokens


def _policy_state(state: State, draft: Draft, victims: Victims | None) -> PolicyState:
    """How it stands once the victims have given way."""
    count, freed, tokens_left = 0, 0, draft.tokens_left
    if victims is not None:
        count, freed, (tokens_left, _) = len(victims), victims.freed, draft.left_without(victims)
    return PolicyState(
        num_running=len(state.running) - count,
        num_waiting=len(state.line) + count,
        num_free_blocks=state.kv.num_free_blocks + freed,
        token_budget=tokens_left,
    )

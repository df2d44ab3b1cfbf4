"""Who starts: the head of the waiting line, for as long as tokens, places and blocks last."""

from __future__ import annotations

from enginebay.interfaces import PolicyState
from enginebay.kvcache import PrefixHit
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._eviction import make_way
from enginebay.scheduling._record import RUNNING, Record
from enginebay.scheduling._state import State


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


def chunk(state: State, record: Record, start: int, draft: Draft, *, others_wait: bool) -> int:
    """How many known tokens of a request to prefill now, from ``start`` on."""
    return state.bounds.chunk(
        start,
        record.num_tokens - start,
        tokens_left=draft.tokens_left,
        context_left=draft.context_left,
        others_wait=others_wait,
    )


def _may_take(state: State) -> bool:
    """Whether running requests give way to waiting ones, if the policy says so."""
    return state.door.preempts_running and not state.bounds.no_evict


def _start(state: State, record: Record, draft: Draft) -> bool:
    bounds = state.bounds
    while True:
        hit = state.kv.lookup(record.sequence) if bounds.prefix_caching else PrefixHit()
        tokens = chunk(state, record, hit.num_tokens, draft, others_wait=len(state.line) > 1)
        if not tokens:
            return False
        room = _room(state, record, hit.num_tokens + tokens)
        keep_free = bounds.watermark if state.running else 0
        if len(state.running) < bounds.seqs and state.kv.has_room(hit, room, keep_free=keep_free):
            break
        if not _may_take(state) or record is state.refused or not make_way(state, record, draft):
            return False
    if not state.door.admit(record, lambda: _policy_state(state, draft)):
        return False
    state.kv.allocate(record.sequence, hit, room, count=not record.num_preemptions)
    state.line.take(record)
    record.status = RUNNING
    record.prefill_until = record.num_tokens
    record.num_acked = hit.num_tokens
    state.running[record.request_id] = record
    state.refused = None
    draft.start(record, tokens, hit)
    state.gate.look(record)
    return True


def _room(state: State, record: Record, num_tokens: int) -> int:
    """The tokens for which an admitted request gets blocks at once, of which ``num_tokens`` are needed now."""
    if state.bounds.no_evict:
        return max(record.num_tokens, record.max_total - 1)
    if state.bounds.whole_prompt or record.num_preemptions:  # started again: only when it need not give way at once
        return record.num_tokens
    return num_tokens


def _policy_state(state: State, draft: Draft) -> PolicyState:
    return PolicyState(
        num_running=len(state.running),
        num_waiting=len(state.line),
        num_free_blocks=state.kv.num_free_blocks,
        token_budget=draft.tokens_left,
    )

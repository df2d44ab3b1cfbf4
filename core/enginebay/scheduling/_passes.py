"""How a step fills: decode tokens of running requests first, then their next chunks, then who waits.

Where the runner cannot mix, prompts go before decode tokens, as far as its bound on steps in a row allows.
"""

from __future__ import annotations

from enginebay.interfaces import PolicyState
from enginebay.kvcache import PrefixHit
from enginebay.scheduling._bounds import UNBOUNDED
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._eviction import force, make_room
from enginebay.scheduling._record import RUNNING, Record
from enginebay.scheduling._state import State


class Passes:
    """Fills drafts; remembers how many steps in a row held prompts while something could decode."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._streak = 0

    def fill(self) -> Draft:
        """Draw up one step."""
        state = self._state
        draft = Draft(state.bounds)
        bounded = state.bounds.prefill_streak != UNBOUNDED
        could_decode = bounded and any(_decodes(record) for record in state.running.values())
        self._run(draft, prefills=not could_decode or self._streak < state.bounds.prefill_streak)
        while draft.empty and draft.blocked and not state.in_flight and force(state, draft):
            self._run(draft, prefills=True)
        if bounded:
            held_prefill = any(r.draft_prefill for r in (*draft.rows, *draft.admitted) if r.draft_tokens)
            self._streak = self._streak + 1 if could_decode and held_prefill else 0
        return draft

    def _run(self, draft: Draft, *, prefills: bool) -> None:
        if self._state.bounds.mixed:
            self._decode(draft)
            if prefills:
                self._prefill(draft)
        else:
            if prefills:
                self._prefill(draft)
            if draft.empty:
                self._decode(draft)
        if draft.empty and not prefills:  # nothing could decode after all
            self._prefill(draft)

    def _decode(self, draft: Draft) -> None:
        state = self._state
        for record in list(state.running.values()):  # a victim leaves the running line as we go
            computed = record.num_computed
            if computed < record.prefill_until or record.status is not RUNNING:
                continue
            known = record.num_tokens + record.placeholders
            if computed >= known or (record.placeholders and known >= record.max_total):
                continue  # its last token is in flight, or there is nothing to compute until one comes back
            if draft.tokens_left <= 0:
                break
            tokens = min(known - computed, draft.tokens_left)
            if computed + tokens > draft.context_left:
                continue
            blocks: tuple[tuple[int, ...], ...] | None = ()
            if computed + tokens > record.sequence.capacity:
                blocks = make_room(state, record, computed + tokens, draft)
                if blocks is None:
                    continue
            draft.run(record, tokens, blocks or (), prefill=False)

    def _prefill(self, draft: Draft) -> None:
        self._continue_chunks(draft)
        if not draft.gave_way:  # else the room just made would go to the next in line
            self._admit(draft)

    def _continue_chunks(self, draft: Draft) -> None:
        state = self._state
        for record in list(state.running.values()):
            if record.num_computed >= record.prefill_until or record.status is not RUNNING:
                continue
            if draft.tokens_left <= 0 or draft.prefills_left <= 0:
                break
            tokens = self._chunk(record, record.num_computed, draft, others_wait=len(state.line) > 0)
            if tokens:
                blocks = make_room(state, record, record.num_computed + tokens, draft)
                if blocks is not None:
                    draft.run(record, tokens, blocks, prefill=True)

    def _admit(self, draft: Draft) -> None:
        state, bounds = self._state, self._state.bounds
        while len(state.running) < bounds.seqs and draft.tokens_left > 0 and draft.prefills_left > 0:
            record = state.line.head()
            if record is None:
                break
            hit = state.kv.lookup(record.sequence) if bounds.prefix_caching else PrefixHit()
            tokens = self._chunk(record, hit.num_tokens, draft, others_wait=len(state.line) > 1)
            if not tokens or not self._start(record, hit, tokens, draft):
                break  # nobody overtakes the head of the line

    def _start(self, record: Record, hit: PrefixHit, tokens: int, draft: Draft) -> bool:
        state, bounds = self._state, self._state.bounds
        room = hit.num_tokens + tokens
        if bounds.whole_prompt or record.num_preemptions:  # started again: only when it need not give way at once
            room = record.num_tokens
        if bounds.no_evict:
            room = max(record.num_tokens, record.max_total - 1)
        keep_free = bounds.watermark if state.running else 0
        if not state.kv.has_room(hit, room, keep_free=keep_free):
            return False
        if not state.door.admit(record, lambda: self._policy_state(draft)):
            return False
        state.kv.allocate(record.sequence, hit, room, count=not record.num_preemptions)
        state.line.take(record)
        record.status = RUNNING
        record.prefill_until = record.num_tokens
        record.num_acked = hit.num_tokens
        state.running[record.request_id] = record
        draft.start(record, tokens, hit)
        return True

    def _chunk(self, record: Record, start: int, draft: Draft, *, others_wait: bool) -> int:
        return self._state.bounds.chunk(
            start,
            record.num_tokens - start,
            tokens_left=draft.tokens_left,
            context_left=draft.context_left,
            others_wait=others_wait,
        )

    def _policy_state(self, draft: Draft) -> PolicyState:
        return PolicyState(
            num_running=len(self._state.running),
            num_waiting=len(self._state.line),
            num_free_blocks=self._state.kv.num_free_blocks,
            token_budget=draft.tokens_left,
        )


def _decodes(record: Record) -> bool:
    return 0 < record.prefill_until <= record.num_computed

"""How a step fills: decode tokens of running requests first, then their next chunks, then who waits.

Where the runner cannot mix, prompts go before decode tokens, as far as its bound on steps in a row allows.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.scheduling._admission import admit
from enginebay.scheduling._bounds import UNBOUNDED
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._eviction import force, make_room
from enginebay.scheduling._proposals import Proposals
from enginebay.scheduling._record import RUNNING, Record
from enginebay.scheduling._state import State
from enginebay.scheduling._turns import Turns

_QUEUED = 2
"""Tokens in flight of one request where stages would idle else: of the step that runs, and of one that waits for it."""


class Passes:
    """Fills drafts; remembers how many steps in a row held prompts while something could decode."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._streak = 0
        self._turns = Turns(state.stages) if state.stages > 1 else None
        self._proposals: Proposals | None = None
        if state.propose is not None and state.bounds.proposals > 0:
            self._proposals = Proposals(state.propose, state.bounds, state.kv)

    def fill(self) -> Draft:
        """Draw up one step."""
        state = self._state
        draft = Draft(state.bounds)
        bounded = state.bounds.prefill_streak != UNBOUNDED
        could_decode = bounded and any(record.decodes for record in state.running.values())
        self._run(draft, prefills=not could_decode or self._streak < state.bounds.prefill_streak)
        while draft.blocked and draft.empty and not state.in_flight and force(state, draft):
            self._run(draft, prefills=True)
        if bounded and not draft.empty:  # a step that is not run ends no row of steps
            held_prefill = any(r.prefills for r in (*draft.rows, *draft.admitted) if r.draft_tokens)
            self._streak = self._streak + 1 if could_decode and held_prefill else 0
        if self._turns is not None and not draft.empty:
            self._turns.took(draft)
        return draft

    def _run(self, draft: Draft, *, prefills: bool) -> None:
        if self._state.bounds.mixed:
            self._decode(draft, self._ready(draft))
            if prefills:
                self._prefill(draft)
        else:
            if prefills:
                self._prefill(draft)
            if draft.empty:
                self._decode(draft, self._ready(draft))
        if self._turns is not None and draft.empty:
            most = _QUEUED if prefills else UNBOUNDED  # before prompts come that were not to come, whoever can decodes
            self._decode(draft, self._turns.behind(self._state.running.values(), draft, most))
        if not prefills and draft.empty and not draft.still:  # nothing could decode after all
            self._prefill(draft)

    def _ready(self, draft: Draft) -> Iterable[Record]:
        """Who is asked first whether it decodes; a copy, since a victim leaves the running line as we go."""
        running = self._state.running.values()
        return list(running) if self._turns is None else self._turns.independent(running, draft)

    def _decode(self, draft: Draft, records: Iterable[Record]) -> None:
        """Give decode tokens to these requests, in their order."""
        state, proposing = self._state, self._proposals
        if proposing is not None:
            proposing.begin(draft, len(state.running))
        tokens_left, context_left, disturbed = draft.tokens_left, draft.context_left, draft.disturbed
        run, bounded = draft.rows.append, state.bounds.context != UNBOUNDED
        for record in records:
            computed, known = record.num_computed, record.expected
            tokens = known - computed
            if tokens <= 0 or computed < record.prefill_until or (known >= record.max_total and record.placeholders):
                continue  # it prefills, or its last token is in flight, or nothing is known that is not computed
            if disturbed and (record.status is not RUNNING or record in draft.still):
                continue
            if tokens_left <= 0:
                break
            if tokens > 1:  # as it is after a roll-back, or where nothing was left of a step for its tokens
                tokens = min(tokens, tokens_left)
            end = computed + tokens
            if bounded and end > context_left:
                continue
            if proposing is not None or end > record.sequence.capacity:
                draft.tokens_left, draft.context_left = tokens_left, context_left
                tokens = self._with_more(record, tokens, draft)
                tokens_left, context_left, disturbed = draft.tokens_left, draft.context_left, draft.disturbed
                if not tokens:
                    continue
                end = computed + tokens
            record.draft_tokens = tokens
            tokens_left -= tokens
            if bounded:
                context_left -= end
            run(record)
        draft.tokens_left, draft.context_left = tokens_left, context_left

    def _with_more(self, record: Record, tokens: int, draft: Draft) -> int:
        """The tokens for a request that decodes, with proposals if there are any, once they have blocks; 0: none."""
        end, proposing = record.num_computed + tokens, self._proposals
        if proposing is not None:
            if record.placeholders:
                if proposing.better_wait(record):
                    return 0
            elif end == record.num_tokens:
                tokens += proposing.make(record, draft)
        return tokens if end <= record.sequence.capacity or make_room(self._state, record, end, draft) else 0

    def _prefill(self, draft: Draft) -> None:
        if self._turns is not None:
            num_running, seqs = len(self._state.running), self._state.bounds.seqs
            could = num_running + min(self._state.line.num_ready, seqs - num_running)
            draft.prefills_left = min(draft.prefills_left, self._turns.prompts(could, draft))
        self._continue_chunks(draft)
        admit(self._state, draft)

    def _continue_chunks(self, draft: Draft) -> None:
        state = self._state
        if not state.prefilling:
            return
        prefilling = [one for one in state.running.values() if one.prefills]
        state.prefilling = bool(prefilling)
        for record in prefilling:
            if record.status is not RUNNING or record in draft.still:
                continue
            if draft.tokens_left <= 0 or draft.prefills_left <= 0:
                break
            tokens = state.bounds.chunk(
                record.num_computed,
                record.num_tokens - record.num_computed,
                tokens_left=draft.tokens_left,
                context_left=draft.context_left,
                others_wait=state.line.num_ready > 0,
            )
            if tokens and make_room(state, record, record.num_computed + tokens, draft):
                draft.run(record, tokens)

"""Proposals for the runner to verify: for whom, how many, and when it pays to wait until one can be made."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.interfaces import Propose
from enginebay.kvcache import KVCacheManager
from enginebay.scheduling._bounds import Bounds
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._record import Record


class Proposals:
    """One step's proposals are made from what no other row of it needs: each keeps its sure token."""

    def __init__(self, propose: Propose, bounds: Bounds, kv: KVCacheManager) -> None:
        self._propose = propose
        self._bounds = bounds
        self._kv = kv
        self._spare = 0

    def begin(self, draft: Draft, num_running: int) -> None:
        """A pass over so many running requests begins: what they need at least is not to be spent."""
        self._spare = draft.tokens_left - num_running

    def better_wait(self, record: Record) -> bool:
        """Whether a request with tokens in flight should stand still until they are known.

        So it is when the guess reaches beyond them: with them verified, the rest of it can be proposed.
        """
        ahead = record.placeholders
        most = min(ahead + 1, record.max_total - record.num_tokens - 1)
        return most > ahead and len(self._guess(record, most)) > ahead

    def make(self, record: Record, draft: Draft) -> int:
        """Give proposals to a request that decodes and has nothing in flight; returns how many.

        Blocks are taken while they are free: nobody gives way to a guess.
        """
        start = record.num_tokens
        most = min(
            self._bounds.proposals,
            self._spare,
            draft.context_left - start,
            record.max_total - start - 1,  # the step draws one token more than it verifies
        )
        proposals = tuple(self._guess(record, most))[:most] if most > 0 else ()
        if not proposals:
            return 0
        blocks = self._kv.extend(record.sequence, start + len(proposals))
        if blocks is None:
            proposals = proposals[: max(0, record.sequence.capacity - start)]
        else:
            record.got_blocks(blocks)
        record.draft_proposals = proposals
        self._spare -= len(proposals)
        return len(proposals)

    def _guess(self, record: Record, at_most: int) -> Sequence[int]:
        return self._propose(record.request.prompt_token_ids, record.output, at_most)

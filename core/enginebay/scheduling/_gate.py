"""Choices of one request share the blocks of its prompt: all but the first wait until the first has computed them."""

from __future__ import annotations

from enginebay.kvcache import KVCacheManager
from enginebay.scheduling._line import WaitingLine
from enginebay.scheduling._record import FINISHED, Record


class PromptGate:
    """Holds the other choices in the line. Whatever becomes of the first one, they are released."""

    def __init__(self, line: WaitingLine, kv: KVCacheManager, *, prefix_caching: bool) -> None:
        self._line = line
        self._block_size = kv.block_size
        self._shares = prefix_caching and kv.prefix_caching
        self._first: dict[str, Record] = {}

    def enter(self, record: Record) -> None:
        """A new request joins the line, or is held until the first choice has what it can share."""
        request = record.request
        if not (request.parent_id and self._shares and self._shareable(record)):
            self._line.add(record)
        elif request.choice == 0:
            record.followers = []
            self._first[request.parent_id] = record
            self._line.add(record)
        else:
            first = self._first.get(request.parent_id)
            if first is None or first.followers is None or not record.sequence.reuse:
                self._line.add(record)
            else:
                first.followers.append(record)
                self._line.hold(record)

    def look(self, record: Record) -> None:
        """The request has followers, perhaps, and more of it is computed: is it enough?"""
        if record.followers is not None and record.num_acked >= self._shareable(record):
            self.open(record)

    def open(self, record: Record) -> None:
        """Nobody waits for this request any more."""
        if record.followers is not None:
            followers, record.followers = record.followers, None
            if self._first.get(record.request.parent_id) is record:
                del self._first[record.request.parent_id]
            for follower in followers:
                if follower.status is not FINISHED:
                    self._line.release(follower)

    def _shareable(self, record: Record) -> int:
        """Tokens of the prompt that another choice would find: full blocks, and never the last token."""
        return (len(record.request.prompt_token_ids) - 1) // self._block_size * self._block_size

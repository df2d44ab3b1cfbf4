"""The live requests: each one's ledger row, and what is derived beside it for as long as it lives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from enginebay.engine.commit import Ends, TextState
from enginebay.engine.ledger import Row
from enginebay.engine.spans import Timeline

__all__ = ["Live", "Lives"]


@final
class Live:
    """``expected`` counts its tokens, with one for each step in flight that will draw, ``computed`` how far it was ever
    sent to be computed.

    ``verifying``: it has proposals in flight, and how many tokens they draw, one at least, is not known. ``last_step``
    is the newest step of its group that it was part of. From its first token on, one more is nothing but that as long
    as its place is below ``plain_below`` and it is none of ``ending``: no event, no end, nothing beside it.
    """

    __slots__ = (
        "computed",
        "ending",
        "ends",
        "expected",
        "last_step",
        "num_prompt",
        "plain_below",
        "row",
        "text",
        "timeline",
        "verifying",
    )

    def __init__(self, row: Row, text: TextState, timeline: Timeline, ends: Ends) -> None:
        self.row = row
        self.text = text
        self.timeline = timeline
        self.ends = ends
        self.num_prompt = len(row.prompt_token_ids)
        self.expected = self.num_prompt + len(row.committed)
        self.computed = 0
        self.verifying = False
        self.last_step: int | None = None
        self.ending = ends.eos | ends.stop if ends.stop else ends.eos
        self.plain_below = 0

    @property
    def ahead(self) -> int:
        """Tokens that steps in flight will draw."""
        return self.expected - self.num_prompt - len(self.row.committed)

    def enter(self, group: int) -> None:
        """It goes on in that group: no step that is in flight elsewhere happened, and the next one is the group's."""
        self.void()
        self.timeline.was_in(self.last_step)
        self.timeline.group, self.last_step = group, None

    def void(self) -> None:
        """No step in flight happened."""
        self.expected, self.verifying = self.num_prompt + len(self.row.committed), False

    def began(self, now_ns: int) -> None:
        """Its first tokens are committed."""
        self.timeline.first_token_ns = now_ns
        self.timeline.event("first_token", now_ns)
        if _asks_for_tokens_alone(self.row):
            self.plain_below = self.ends.most - 1


@final
class Lives:
    """The live requests by id. Those that a step was sent for are apart from those that no step has had yet.

    A step looks each of its requests up, and that costs more in a table of 100,000 than in one of 256, whose lines the
    processor keeps at hand.
    """

    __slots__ = ("_waiting", "begun")

    def __init__(self) -> None:
        self.begun: dict[str, Live] = {}
        self._waiting: dict[str, Live] = {}

    def __iter__(self) -> Iterator[Live]:
        """All of them, those that have begun first."""
        yield from self.begun.values()
        yield from self._waiting.values()

    def __getitem__(self, request_id: str) -> Live:
        """The live request of that id. Raises ``KeyError``."""
        return self.begun.get(request_id) or self._waiting[request_id]

    def get(self, request_id: str) -> Live | None:
        """The live request of that id, if there is one."""
        return self.begun.get(request_id) or self._waiting.get(request_id)

    def add(self, live: Live) -> None:
        """One that was admitted."""
        self._waiting[live.row.request_id] = live

    def begin(self, request_id: str) -> Live | None:
        """One that a step is sent for; None when no such request lives."""
        live = self._waiting.pop(request_id, None)
        if live is not None:
            self.begun[request_id] = live
        return live

    def pop(self, request_id: str) -> Live:
        """Take out one that has ended."""
        return self.begun.pop(request_id, None) or self._waiting.pop(request_id)


def _asks_for_tokens_alone(row: Row) -> bool:
    params = row.params
    told = params.logprobs is not None or params.prompt_logprobs is not None
    return not (told or params.stop or params.structured is not None or row.choice)

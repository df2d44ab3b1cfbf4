"""The live requests: each one's ledger row, and what is derived beside it for as long as it lives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from enginebay.engine.commit import Ends, TextState
from enginebay.engine.ledger import Row
from enginebay.engine.spans import Timeline

__all__ = ["Live", "Lives"]


@final
class Live:
    """``ahead`` counts tokens that steps in flight will draw, ``computed`` how far it was ever sent to be computed.

    ``verifying``: it has proposals in flight, and how many tokens they draw, one at least, is not known. ``last_step``
    is the newest step that it was part of.
    """

    __slots__ = (
        "_ending",
        "_plain_below",
        "ahead",
        "computed",
        "ends",
        "last_step",
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
        self.ahead = 0
        self.computed = 0
        self.verifying = False
        self.last_step: int | None = None
        self._ending = ends.eos | ends.stop if ends.stop else ends.eos
        self._plain_below = ends.most - 1 if _asks_for_tokens_alone(row) else 0

    def goes_on(self, drawn: Sequence[int], offset: int, vocab_size: int) -> bool:
        """Whether all that these tokens can mean is one more of them: no event, no end, no fault, nothing beside it.

        Then settling the row comes down to its commit. True is a promise, and False only costs time.
        """
        if not 0 < offset < self._plain_below or len(drawn) != 1 or self.verifying:
            return False
        token_id = drawn[0]
        return 0 <= token_id < vocab_size and token_id not in self._ending


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

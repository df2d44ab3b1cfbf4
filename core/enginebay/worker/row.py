"""One request as a runner knows it, and its part of a step. Plain Python, no torch."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from enginebay.messages import SamplingParams

__all__ = ["ANY_ROOM", "Row", "ScheduledRow"]

ANY_ROOM: Final = 1 << 62


class Row(Struct, kw_only=True, eq=False):
    """One request as the runner knows it.

    ``token_ids`` is the prompt and every token known after it; ``block_ids`` has one list per KV group, entry i of
    which holds positions ``i * block_size`` onwards; ``num_computed_tokens`` counts the tokens whose keys and values
    are in the cache before the current step. ``room`` is how many positions its blocks hold, where that is known.
    ``floor``: what was in the cache when it began. ``unsure``: proposals of its last step of which it is not known
    whether they hold. ``owes``: a token that it had to draw did not come. A runner reads rows and leaves the writing to
    the table.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    choice: int
    block_ids: list[list[int]]
    num_computed_tokens: int
    parked: bool = False
    room: int = ANY_ROOM
    owes: bool = False
    floor: int = 0
    unsure: int = 0


class ScheduledRow(Struct, gc=False, eq=False):
    """A row of the current step: compute ``num_tokens`` tokens from ``row.num_computed_tokens`` on.

    ``samples``: whether the step reaches the end of what is known, so that a token is drawn after the last of them.
    ``draft_token_ids`` are proposals, which ``num_tokens`` counts and ``row.token_ids`` has not: a token is drawn after
    each of them too, as long as what was drawn before it is what was proposed.
    """

    row: Row
    num_tokens: int
    samples: bool
    draft_token_ids: tuple[int, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The tokens that are computed in this step."""
        row, start = self.row, self.row.num_computed_tokens
        return row.token_ids[start : start + self.num_tokens] + list(self.draft_token_ids)

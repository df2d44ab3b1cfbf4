"""Who decodes in which step where pipeline stages compute: each stage is to have requests of its own to work on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import attrgetter

from enginebay.scheduling._draft import Draft
from enginebay.scheduling._record import Record

_by_turn = attrgetter("turn")


class Turns:
    """Shares the running requests out to as many steps in a row as there are stages, the longest idle ones first.

    A request whose last token is still to be drawn by one of the steps just before would make its stage wait for the
    end of that step, and the stages would work one after the other. Prompts wait for nothing: any step may hold them.
    """

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._now = 0

    def took(self, draft: Draft) -> None:
        """A step was drawn up: it was the turn of all that it holds."""
        self._now += 1
        for record in (*draft.rows, *draft.admitted):
            if record.draft_tokens:
                record.turn = self._now

    def independent(self, running: Collection[Record], draft: Draft) -> Iterator[Record]:
        """Those that may decode in the next step while all stages are busy, until it holds its share of all."""
        last = self._now + 1 - self._stages
        decoding = [record for record in running if record.decodes]
        ready = [record for record in decoding if not record.placeholders or record.turn <= last]
        return _first(_share(len(decoding), self._stages), ready, draft)

    def behind(self, running: Collection[Record], draft: Draft, most: int) -> Iterator[Record]:
        """Those that may decode right behind a step of theirs, so that it has a successor when it ends.

        That is for a step that would be empty else. Nobody has more than ``most`` tokens in flight then: what is queued
        goes before a request that comes now.
        """
        decoding = [record for record in running if record.decodes]
        ready = [record for record in decoding if record.placeholders < most]
        return _first(max(1, len(decoding) // self._stages), ready, draft)

    def prompts(self, num_requests: int, draft: Draft) -> int:
        """How many prompts a step may hold beside its decode rows, of so many requests that run or could start."""
        return max(1, _share(num_requests, self._stages) - draft.num_rows)


def _share(count: int, steps: int) -> int:
    return -(-count // steps)


def _first(count: int, ready: list[Record], draft: Draft) -> Iterator[Record]:
    """One after the other until so many have rows; whom the step passes over takes nobody's place."""
    for record in sorted(ready, key=_by_turn):
        if draft.num_rows >= count:
            return
        yield record

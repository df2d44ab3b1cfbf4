"""Proposals without a draft model: what followed a request's last tokens where they stood before. Pure.

Prompt lookup: the last tokens are looked for in the request's own prompt and answer; of the places where the most of
them stand, the latest is taken, and what follows there is proposed. Answers that quote or edit their prompt, and code
and lists that repeat themselves, are guessed well this way; of others little is proposed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

__all__ = ["NgramProposer", "propose_ngram"]

_WINDOW: Final = 4096
"""Tokens of a request's past that are looked at, when it is met first; later ones are added to them."""

_PLACES: Final = 16
"""Places that are compared in one call, latest first."""

_REMEMBERED: Final = 1024
"""Requests whose tokens stay indexed; of one that is met again later, they are indexed again."""


def propose_ngram(token_ids: Sequence[int], at_most: int, *, shortest: int, longest: int) -> tuple[int, ...]:
    """At most so many tokens that may follow: those that followed the latest of the longest matches.

    A match is a place where the last tokens stand, ``shortest`` at least; beyond ``longest`` more of them do not count.
    Where what follows there ends with the text itself, it goes on in a circle. Empty when there is no match.
    """
    past = _Past(shortest, longest)
    past.extend(token_ids)
    return past.guess(at_most)


class NgramProposer:
    """``SchedulerContext.propose``: ``propose_ngram`` with what it learned of each request kept between calls.

    The cost of a call grows with the tokens that are new to it. A request is known again by its prompt and its answer
    being the objects that they were; others are looked at anew.
    """

    def __init__(self, *, shortest: int, longest: int, max_tokens: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._max_tokens = max_tokens
        self._pasts: OrderedDict[int, tuple[Sequence[int], Sequence[int], _Past]] = OrderedDict()

    def __call__(self, prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
        """Proposals behind ``prompt`` and ``output``."""
        return self._past(prompt, output).guess(min(at_most, self._max_tokens))

    def _past(self, prompt: Sequence[int], output: Sequence[int]) -> _Past:
        key = id(output)
        known = self._pasts.get(key)
        if known is not None and known[0] is prompt and known[1] is output:
            past, num_new = known[2], len(output) - known[2].num_output
            if num_new >= 0:
                if num_new:
                    past.extend(output[-num_new:])
                    past.num_output += num_new
                    self._pasts.move_to_end(key)
                return past
        past = _Past(self._shortest, self._longest)
        past.extend((*prompt, *output)[-_WINDOW:])
        past.num_output = len(output)
        self._pasts[key] = prompt, output, past
        self._pasts.move_to_end(key)
        if len(self._pasts) > _REMEMBERED:
            self._pasts.popitem(last=False)
        return past


class _Past:
    """Tokens, and for each position the one before it where the same ``shortest`` tokens end: chains, as in LZ77."""

    __slots__ = ("_before", "_ends", "_longest", "_shortest", "_token_ids", "num_output")

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._token_ids: list[int] = []
        self._before = array("l", [-1])
        self._ends: dict[tuple[int, ...], int] = {}
        self.num_output = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        known, ends, before, width = self._token_ids, self._ends, self._before, self._shortest
        for token in token_ids:
            known.append(token)
            end = len(known)
            if end < width:
                before.append(-1)
                continue
            key = tuple(known[-width:])
            before.append(ends.get(key, -1))
            ends[key] = end

    def guess(self, at_most: int) -> tuple[int, ...]:
        known = self._token_ids
        end = len(known)
        place, best, most = self._before[end], -1, self._shortest - 1
        for _ in range(_PLACES):
            if place < 0:
                break
            length = self._match(place)
            if length > most:
                best, most = place, length
                if most >= self._longest:
                    break
            place = self._before[place]
        if best < 0:
            return ()
        guess = known[best : best + at_most]
        while len(guess) < at_most:
            guess += guess[best - end :]  # a period of as many tokens
            del guess[at_most:]
        return tuple(guess)

    def _match(self, place: int) -> int:
        """How many of the last tokens stand before ``place``, up to ``longest``."""
        known, end = self._token_ids, len(self._token_ids)
        most = min(self._longest, place)
        length = 0
        while length < most and known[place - 1 - length] == known[end - 1 - length]:
            length += 1
        return length

"""Which group a request goes to: pure arithmetic over what each has to do, and over which prompt began where."""

from __future__ import annotations

import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from enginebay.engine.admission.admit import Ask

__all__ = ["Load", "Router", "choose", "cost_of"]

_MOST_PREFIXES: Final = 4096
"""How many beginnings of prompts are remembered; the one that was used longest ago is forgotten."""


@dataclass(kw_only=True)
class Load:
    """What one group has to do: tokens, by ``cost_of``, and when it was chosen last (0: never)."""

    tokens: int = 0
    chosen: int = 0


def cost_of(ask: Ask, max_model_len: int | None) -> int:
    """The most tokens that a request may come to: its prompt, and the longest answer of each of its choices."""
    prompt, answer = len(ask.prompt_token_ids), ask.params.max_tokens
    if max_model_len is not None:
        answer = min(answer, max(0, max_model_len - prompt))
    return prompt + ask.params.n * answer


def choose(loads: Sequence[Load | None], *, preferred: int | None, slack: int) -> int | None:
    """The group that takes the next request; None: none is there (a group that is None takes nothing).

    The least loaded, and of several the one that was chosen longest ago; ``preferred``, which has the prompt's
    beginning in its cache, as long as it has no more than ``slack`` tokens more to do than the least loaded.
    """
    living = [(load.tokens, load.chosen, index) for index, load in enumerate(loads) if load is not None]
    if not living:
        return None
    least, _, index = min(living)
    if preferred is not None and preferred < len(loads):
        load = loads[preferred]
        if load is not None and load.tokens <= least + slack:
            return preferred
    return index


class Router:
    """Keeps the loads of a set of groups. Not thread-safe; every ``take`` is given back once by ``give_back``.

    ``prefix`` is how many tokens two prompts must have in common to be sent the same way (a block; 0: no matter), and
    ``slack`` how many tokens that is worth.
    """

    def __init__(self, num_groups: int, *, prefix: int, slack: int, max_model_len: int | None = None) -> None:
        self._loads: list[Load | None] = [Load() for _ in range(num_groups)]
        self._prefix = prefix
        self._slack = slack
        self._max_model_len = max_model_len
        self._homes: OrderedDict[int, int] = OrderedDict()
        self._turn = 0
        self._resting: set[tuple[int, str]] = set()

    def loads(self) -> tuple[int | None, ...]:
        """Tokens that each group has to do; None: it is lost."""
        return tuple(None if load is None else load.tokens for load in self._loads)

    def add(self) -> int:
        """One more group; its number."""
        self._loads.append(Load())
        return len(self._loads) - 1

    def lose(self, group: int) -> None:
        """This group takes no more requests."""
        self._loads[group] = None

    def rest(self, group: int, on: bool, why: str = "") -> None:
        """This group is passed over as long as there is another; or, if not ``on``, it no longer is for that reason."""
        (self._resting.add if on else self._resting.discard)((group, why))

    def take(self, ask: Ask) -> tuple[int, int] | None:
        """(group, cost) for a request; None when no group is left."""
        key = self._key(ask)
        preferred = self._homes.get(key) if key is not None else None
        group = self._choose(self._loads, preferred)
        if group is None:
            return None
        cost = cost_of(ask, self._max_model_len)
        self.put(group, cost)
        if key is not None:
            self._homes[key] = group
            self._homes.move_to_end(key)
            if len(self._homes) > _MOST_PREFIXES:
                self._homes.popitem(last=False)
        return group, cost

    def other(self, able: Callable[[int], bool]) -> int | None:
        """The group of those that are ``able`` that takes a request which has been elsewhere; None: none is there."""
        return self._choose([load if able(index) else None for index, load in enumerate(self._loads)], None)

    def put(self, group: int, cost: int) -> None:
        """A request has gone to this group; nothing is counted for one that has been lost by then."""
        self._turn += 1
        if (load := self._loads[group]) is not None:
            load.tokens += cost
            load.chosen = self._turn

    def _choose(self, loads: Sequence[Load | None], preferred: int | None) -> int | None:
        """Of those that do not rest, if there are any."""
        if self._resting:
            resting = {group for group, _ in self._resting}
            awake = [None if index in resting else load for index, load in enumerate(loads)]
            if (group := choose(awake, preferred=preferred, slack=self._slack)) is not None:
                return group
        return choose(loads, preferred=preferred, slack=self._slack)

    def give_back(self, group: int, cost: int) -> None:
        """A request has ended, or was not taken."""
        load = self._loads[group]
        if load is not None:
            load.tokens -= cost

    def _key(self, ask: Ask) -> int | None:
        """Of the first block of a prompt, with what keeps caches apart; None: it is shorter than that.

        Two that fall together cost a preference, and nothing else.
        """
        if not self._prefix or len(ask.prompt_token_ids) <= self._prefix:
            return None
        start = zlib.crc32(f"{ask.cache_salt}/{ask.adapter}".encode("utf-8", "surrogatepass"))
        return zlib.crc32(array("q", ask.prompt_token_ids[: self._prefix]).tobytes(), start)

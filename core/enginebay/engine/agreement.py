"""What the engines of one world agree on where every rank has its own: terms, seeds, blocks, and then each schedule.

Each rank schedules by itself, and all come to the same: from the same requests, the same seeds and as many blocks. That
they do is compared every few steps, since ranks whose schedules differ would go on computing nonsense together, or wait
for each other for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from enginebay.errors import EnginebayError, EngineDead, StartFailed, WorkerHung, WorkerLost, is_interrupt
from enginebay.messages import SchedulerOutput
from enginebay.runtime import Clock, Entropy

__all__ = ["Agreement", "Exchange"]

Exchange = Callable[[str, bytes, float], tuple[bytes, ...]]
"""``Executor.exchange``."""

_SAME: Final = "every rank must be given the same requests, in the same order, between the same steps"
"""Which holds for commands, too."""

T = TypeVar("T")


class _Opening(msgspec.Struct, frozen=True):
    """What a rank says at the start: its draw of a seed, and everything that its schedules follow from, in words."""

    seed: int
    terms: dict[str, str]


class _Step(msgspec.Struct, frozen=True, array_like=True):
    """One schedule: a hash of all that was sent to the workers, and its numbers, for the message."""

    digest: bytes
    requests: int
    tokens: int


class _Schedules(msgspec.Struct, frozen=True):
    """The schedules since the last comparison: steps ``first``, ``first + 1``, …; ``now`` is the rank's clock.

    ``weights``: which ones the rank computes them with. They change where nothing is left to compare.
    """

    first: int
    steps: list[_Step]
    now: float
    weights: str = ""


class Agreement:
    """One rank's half of it. ``every`` is after how many steps schedules are compared, ``timeout`` (seconds) for how
    long a slower rank is waited for. ``now`` is a time that all ranks see alike: rank 0's, at the last comparison."""

    def __init__(self, exchange: Exchange, clock: Clock, *, rank: int, every: int, timeout: float) -> None:
        self.now = 0.0
        self._exchange = exchange
        self._clock = clock
        self._rank = rank
        self._every = every
        self._timeout = timeout
        self._first = 0
        self._steps: list[_Step] = []
        self._weights = ""

    def open(self, entropy: Entropy, terms: Mapping[str, str], deadline: float) -> Entropy:
        """The entropy that all ranks have: rank 0's draw. Raises ``StartFailed`` naming a term that differs."""
        mine = _Opening(seed=entropy.stream("agreement").getrandbits(62), terms=dict(terms))
        everyone = self._told("terms", mine, _Opening, deadline)
        for rank, other in enumerate(everyone):
            for name in dict.fromkeys((*everyone[0].terms, *other.terms)):
                first, here = everyone[0].terms.get(name, "unset"), other.terms.get(name, "unset")
                if first != here:
                    raise StartFailed(
                        f"the ranks do not agree on {name}: it is {first} on rank 0, and {here} on rank {rank}: start "
                        "every rank with the same config and the same packages"
                    )
        return Entropy(everyone[0].seed)

    def fewest(self, num_blocks: int, reserved: int, within: float) -> tuple[int, int, int]:
        """The fewest blocks of all ranks, the most that any reserves, and the rank that has the fewest.

        Those that load more slowly have ``within`` seconds.
        """
        counts = self._told("blocks", (num_blocks, reserved), tuple[int, int], self._clock.now() + within)
        fewest = min(num for num, _ in counts)
        return fewest, max(each for _, each in counts), [num for num, _ in counts].index(fewest)

    def note(self, sent: SchedulerOutput, weights: str = "") -> None:
        """A step is about to be sent. Where comparing is due, the ranks meet before anything of it is computed.

        ``weights`` says in words which ones are in force here.

        It is due every so many steps, and before any whose batch is not the last one's: there ranks can begin to
        differ, and a collective of vectors of different sizes may end the process (Gloo aborts it).
        """
        self._weights = weights
        digest = hashlib.blake2b(msgspec.msgpack.encode(sent), digest_size=8).digest()
        self._steps.append(_Step(digest, len(sent.num_scheduled_tokens), sent.total_num_scheduled_tokens))
        changed = sent.new or sent.resumed or sent.preempted or sent.finished
        if len(self._steps) >= self._every or (changed and sent.num_scheduled_tokens):
            self._meet()

    def rest(self) -> None:
        """Nothing is left to do: compare what was not compared yet, so that no answer stands on a difference."""
        if self._steps:
            self._meet()

    def cause_of(self, error: EnginebayError, within: float) -> EnginebayError:
        """What a failed step came from: the difference, when there is one; a rank that is lost; else ``error``.

        A collective between ranks that run other steps fails by its shapes, or by its deadline: that says little. It
        fails at once when a rank's process has ended. Bounded by ``within`` seconds.
        """
        if not self._steps:
            return error
        try:
            self._compare(within)
        except TimeoutError as missing:
            kind = WorkerHung if isinstance(error, WorkerHung) else WorkerLost
            return kind(f"{missing}, and a step failed here: {error}")
        except EngineDead as difference:
            return difference
        except BaseException as failed:  # an executor's own, which says less than ``error`` does
            if is_interrupt(failed):
                raise
        return error

    def _meet(self) -> None:
        first, last = self._first, self._first + len(self._steps) - 1
        try:
            self._compare(self._timeout)
        except TimeoutError as missing:
            raise WorkerHung(
                f"rank {self._rank} ran steps {first} to {last}, and within {self._timeout:g} s ([deadlines] step) "
                f"{missing}: {_SAME}"
            ) from None

    def _compare(self, timeout: float) -> None:
        mine = _Schedules(self._first, self._steps, self._clock.now(), self._weights)
        self._first, self._steps = self._first + len(self._steps), []
        everyone = self._told("schedules", mine, _Schedules, self._clock.now() + timeout)
        self.now = everyone[0].now
        difference = _difference(everyone)
        if difference:
            raise EngineDead(f"the engine stopped: {difference}: {_SAME}")

    def _told(self, name: str, mine: object, kind: type[T], deadline: float) -> list[T]:
        answers = self._exchange(name, msgspec.msgpack.encode(mine), deadline)
        told = []
        for rank, answer in enumerate(answers):
            try:
                told.append(msgspec.msgpack.decode(answer, type=kind))
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise EngineDead(
                    f"the engine stopped: what rank {rank} told as its {name} cannot be read: {error}"
                ) from None
        return told


def _difference(everyone: Sequence[_Schedules]) -> str | None:
    """The first step in which a rank's schedule is not rank 0's, in words that are the same on every rank; or weights
    that are not rank 0's."""
    steps = [told.steps for told in everyone]
    for index in range(max(map(len, steps))):
        at = [told[index] if index < len(told) else None for told in steps]
        for rank, one in enumerate(at):
            if one != at[0]:
                step = everyone[0].first + index
                return f"the schedules of the ranks differ from step {step} on: {_both(at[0], rank, one)}"
    for rank, told in enumerate(everyone):
        if told.weights != everyone[0].weights:
            return f"the ranks have different weights: rank 0 {everyone[0].weights}, and rank {rank} {told.weights}"
    return None


def _both(zero: _Step | None, rank: int, other: _Step | None) -> str:
    if zero is not None and other is not None and (zero.requests, zero.tokens) == (other.requests, other.tokens):
        return f"ranks 0 and {rank} ran {_numbers(zero)} each, and not the same"
    return f"rank 0 ran {_numbers(zero)}, and rank {rank} {_numbers(other)}"


def _numbers(step: _Step | None) -> str:
    if step is None:
        return "no such step"
    return f"{_count(step.tokens, 'token')} of {_count(step.requests, 'request')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

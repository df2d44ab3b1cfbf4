"""One answer from several: statistics summed, controls done group after group, the ends of all told as one."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Final, TypeVar

import msgspec

from enginebay.engine.client import InProcessClient
from enginebay.engine.control.tensors import AbortTensors, Command
from enginebay.engine.parts import EngineStats
from enginebay.errors import EnginebayError, EngineDead, InvalidRequest
from enginebay.messages import (
    CallWorkers,
    ControlDone,
    Drain,
    EngineHealth,
    ReadStatus,
    Resume,
    SchedulerStats,
    StopEngine,
    StopProfile,
)
from enginebay.runtime import Runtime

__all__ = ["ControlInTurn", "SummedStats", "end_of_all", "for_each_group", "merged", "summed"]

T = TypeVar("T")

_AT_ONCE = (ReadStatus, Drain, StopEngine)
"""What changes nothing in a group that another must not do without."""

_BY_ALL = (AbortTensors, Resume, StopProfile)
"""What undoes something: it is done by the others also where one could not."""


_COUNTS: Final = frozenset(
    {
        "unfinished",
        "running",
        "waiting",
        "steps",
        "committed_tokens",
        "finished",
        "moved",
        "kv_blocks",
        "prefix_hits",
        "restarted",
    }
)
"""Facts that count something. The engine's are the sums, number by number: ``7 of 364 in use`` of each is of 728."""

_NUMBER: Final = re.compile(r"(\d+)")


def merged(
    values: Sequence[Mapping[str, str]], groups: Sequence[int] | None = None, counts: Collection[str] = ()
) -> dict[str, str]:
    """What all groups say, by name; where they differ, each with its number: ``group 0: a; group 1: b``.

    ``groups``: their numbers, where these are not 0, 1, …; of the names in ``counts`` it is the sum.
    """
    groups = range(len(values)) if groups is None else groups
    result = {}
    for name in dict.fromkeys(name for one in values for name in one):
        said = {group: one[name] for group, one in zip(groups, values, strict=True) if one.get(name)}
        if name in counts and (total := _sum(list(said.values()))) is not None:
            result[name] = total
        elif len(said) == len(values) and len(set(said.values())) == 1:
            result[name] = said[groups[0]]
        else:
            result[name] = "; ".join(f"group {group}: {value}" for group, value in said.items())
    return result


def _sum(said: Sequence[str]) -> str | None:
    """These texts with their numbers added up; None: they are not alike."""
    parts = [_NUMBER.split(one) for one in said]
    if len({tuple(one[::2]) for one in parts}) != 1:
        return None
    return "".join(one[0] if i % 2 == 0 else str(sum(map(int, one))) for i, one in enumerate(zip(*parts, strict=True)))


def summed(stats: Sequence[EngineStats]) -> EngineStats:
    """Every number is the sum of the groups'."""

    def add(kind: type[EngineStats | SchedulerStats], parts: Sequence[EngineStats | SchedulerStats]) -> dict[str, int]:
        numbers = [one.name for one in msgspec.structs.fields(kind) if one.type is int]
        return {name: sum(getattr(part, name) for part in parts) for name in numbers}

    scheduler = SchedulerStats(**add(SchedulerStats, [one.scheduler for one in stats]))
    return EngineStats(**add(EngineStats, stats), scheduler=scheduler)


class SummedStats(Future[EngineStats]):
    """The sum of what ``parts`` answer, each with the client that was asked; of those that fail, nothing is counted.

    Fails when all of them do.
    """

    def __init__(self, runtime: Runtime, parts: Sequence[tuple[InProcessClient, Future[EngineStats]]]) -> None:
        super().__init__()
        self._runtime = runtime
        self.parts = tuple(parts)
        for _, part in self.parts:
            part.add_done_callback(self._look)

    def _look(self, _: Future[EngineStats]) -> None:
        if not all(part.done() for _, part in self.parts):
            return
        errors = [part.exception() for _, part in self.parts]
        try:
            if all(errors):
                self.set_exception(errors[0])
            else:
                there = [part for (_, part), error in zip(self.parts, errors, strict=True) if error is None]
                self.set_result(summed(_values(self._runtime, there)))
        except InvalidStateError:  # two parts ended at the same time, and the other was first
            return


def for_each_group(command: Command, num_ranks: Sequence[int]) -> list[Command]:
    """The command for each group; what is given rank by rank is dealt out. Raises ``InvalidRequest``."""
    if not isinstance(command, CallWorkers) or command.per_rank is None:
        return [command] * len(num_ranks)
    if len(command.per_rank) != sum(num_ranks):
        raise InvalidRequest(
            f"per_rank has {len(command.per_rank)} payloads, and {len(num_ranks)} groups have {sum(num_ranks)} ranks "
            "together: give one for each",
            param="per_rank",
        )
    dealt: list[Command] = []
    left = command.per_rank
    for count in num_ranks:
        dealt.append(msgspec.structs.replace(command, per_rank=left[:count]))
        left = left[count:]
    return dealt


class ControlInTurn(Future[ControlDone]):
    """One command to several groups: each after the one before has done it; a refusal leaves the rest as they are.

    What only asks, or ends the engine, goes to all at once. ``groups`` are numbers, for messages; ``send(i)`` sends to
    the i-th of them. The values come group after group.
    """

    def __init__(
        self,
        runtime: Runtime,
        command: Command,
        groups: Sequence[int],
        send: Callable[[int], Future[ControlDone]],
        on_end: Callable[[BaseException | None, int], None] = lambda error, num_done: None,
        facts: Mapping[str, str] | None = None,
        lost: Sequence[int] = (),
    ) -> None:
        """``on_end`` is told, before whoever waits is, of the error and of how many groups have done it; ``facts`` are
        said in the place of what the groups say, and ``lost`` are those that have ended, and are not asked."""
        super().__init__()
        self._lost = lost
        self._on_end = on_end
        self._facts = facts or {}
        self._runtime = runtime
        self._name = str(command.__struct_config__.tag)
        self._groups = groups
        self._send = send
        self._parts: list[Future[ControlDone]] = []
        if isinstance(command, _AT_ONCE):
            self._parts = [self._asked(index) for index in range(len(groups))]
            for part in self._parts:
                part.add_done_callback(self._look)
        else:
            self._goes_on = isinstance(command, _BY_ALL)
            self._next()

    def _asked(self, index: int) -> Future[ControlDone]:
        try:
            return self._send(index)
        except EnginebayError as error:  # it has ended by now
            gone: Future[ControlDone] = Future()
            gone.set_exception(error)
            return gone

    def _next(self) -> None:
        self._parts.append(self._asked(len(self._parts)))
        self._parts[-1].add_done_callback(self._after)

    def _after(self, part: Future[ControlDone]) -> None:
        if len(self._parts) < len(self._groups) and (self._goes_on or part.exception() is None):
            self._next()
        else:
            self._conclude()

    def _look(self, _: Future[ControlDone]) -> None:
        if all(part.done() for part in self._parts):
            self._conclude()

    def _conclude(self) -> None:
        """The answers together, or the first group's error; where others have done it already, it says so."""
        errors = [part.exception() for part in self._parts]
        done = [str(group) for group, error in zip(self._groups, errors, strict=False) if error is None]
        failed = [
            self._with_those(error, self._groups[index], done)
            for index, error in enumerate(errors)
            if error is not None
        ]
        try:
            self._on_end(failed[0] if failed else None, len(done))
            if failed:
                self.set_exception(failed[0])
                return
            answers = _values(self._runtime, self._parts)
            values = tuple(value for one in answers for value in one.values)
            facts = {**merged([one.facts for one in answers], self._groups, _COUNTS), **self._facts}
            self.set_result(ControlDone(values=values, facts=facts, health=_together(answers, self._lost)))
        except InvalidStateError:  # two parts ended at the same time, and the other was first
            return

    def _with_those(self, error: BaseException, group: int, done: Sequence[str]) -> BaseException:
        if not done or not isinstance(error, EnginebayError):
            return error
        said = copy.copy(error)
        said.args = (f"group {group} did not {self._name}, which group {', '.join(done)} did already: {error}",)
        return said


def _together(answers: Sequence[ControlDone], lost: Sequence[int]) -> EngineHealth | None:
    """All groups' health as one: the engine is well when each is, and none is lost."""
    said = [one.health for one in answers if one.health is not None]
    if not said:
        return None
    faults = [f"group {group} is lost" for group in lost] + [one.why for one in said if one.why]
    return EngineHealth(
        healthy=not faults and all(one.healthy for one in said),
        why="; ".join(dict.fromkeys(faults)),
        workers=tuple(worker for one in said for worker in one.workers),
        sinks=said[0].sinks,
        wall=max(one.wall for one in said),
    )


def _values(runtime: Runtime, done: Sequence[Future[T]]) -> list[T]:
    """What is there already."""
    return [runtime.wait(one, runtime.clock.now()) for one in done]


def end_of_all(errors: Sequence[EnginebayError]) -> EnginebayError:
    """The end of an engine whose groups have all ended, of the first one's class, with what ended each."""
    if not errors:
        return EngineDead("the engine is closed; make a new one")
    said = [str(error) for error in errors]
    if len(set(said)) == 1:
        return errors[0]
    return type(errors[0])("; ".join(f"group {index}: {text}" for index, text in enumerate(said)))

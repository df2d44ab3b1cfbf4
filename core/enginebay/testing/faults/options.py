"""What ``[extensions.faults]`` says: a script of faults, a random stream of them, or both."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from enginebay.errors import did_you_mean
from enginebay.interfaces import Options

__all__ = ["IN_WORKER", "NAME", "ON_ANSWERS", "ON_PROCESSES", "Fault", "FaultKind", "FaultOptions", "RandomFaults"]

NAME: Final = "faults"
"""Of the extension, and of the worker extension that it needs for faults inside workers."""

_MIB: Final = 1 << 20


class FaultKind(StrEnum):
    """What is done to the engine."""

    KILL = "kill"
    """A worker's process is killed (SIGKILL)."""
    STOP = "stop"
    """It is stopped (SIGSTOP), and goes on after ``seconds``; 0: never."""
    SLOW = "slow"
    """Each step of a rank takes ``seconds`` longer, until its worker ends."""
    FAIL = "fail"
    """A call fails on a rank."""
    EXHAUST_MEMORY = "exhaust_memory"
    """A rank's step takes memory until it gets no more: ``bytes`` later, at the latest."""
    DROP_REPLY = "drop_reply"
    """A rank's answer to a call never comes."""
    DELAY_REPLY = "delay_reply"
    """A rank's answer to a call comes ``seconds`` late."""
    FILL_SHM = "fill_shm"
    """The machine's shared memory has ``bytes`` less room, or none, for ``seconds``."""


ON_ANSWERS: Final = frozenset({FaultKind.FAIL, FaultKind.DROP_REPLY, FaultKind.DELAY_REPLY})
"""Kinds that change the answer to one call, in the engine's process."""

IN_WORKER: Final = frozenset({FaultKind.SLOW, FaultKind.EXHAUST_MEMORY})
"""Kinds that the worker extension does, inside a worker."""

ON_PROCESSES: Final = frozenset({FaultKind.KILL, FaultKind.STOP, FaultKind.EXHAUST_MEMORY})
"""Kinds for workers that are processes of their own: of the engine's process they would be the end."""

Replica = Annotated[int, Field(ge=0, description="The copy of the model whose executor it meets.")]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Bytes = Annotated[int, Field(ge=_MIB, le=1 << 36, description="The most that exhaust_memory and fill_shm take.")]


class Fault(Options):
    """One fault: what, whom, and when: with the Nth of the counted calls, or so long after the first of them."""

    kind: Annotated[FaultKind, Field(description="What is done.")]
    replica: Replica = 0
    rank: Annotated[int, Field(ge=0, description="The worker.")] = 0
    after_calls: Annotated[
        int | None, Field(ge=1, description="With this counted call of the replica, the first being 1.")
    ] = None
    after_seconds: Annotated[
        Seconds | None, Field(description="So long after the replica's first counted call; else after_calls.")
    ] = None
    seconds: Annotated[Seconds, Field(description="How long, or how much longer: see the kinds.")] = 1.0
    bytes: Bytes = 64 * _MIB

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, given: Any) -> Any:
        """Else the list of what is known would be that of the section, and not of an entry of its script."""
        known = sorted(cls.model_fields)
        for key in given if isinstance(given, dict) else ():
            if key not in known:
                where = " (it stands beside the script)" if key in FaultOptions.model_fields else ""
                raise ValueError(
                    f"a fault of the script has no {key!r:.80}{where}.{did_you_mean(str(key), known)} "
                    f"It has: {', '.join(known)}"
                )
        return given

    @model_validator(mode="after")
    def _has_one_time(self) -> Self:
        if (self.after_calls is None) == (self.after_seconds is None):
            raise ValueError("a fault has either after_calls or after_seconds")
        return self


class RandomFaults(Options):
    """A stream of faults for each replica, drawn from the seed: their kinds, ranks, times and lengths."""

    seed: Annotated[int, Field(ge=0, description="The same seed draws the same faults.")]
    rate: Annotated[
        float, Field(gt=0, le=1000, description="Faults in each second, or each counted call, outside the gaps.")
    ]
    per: Annotated[Literal["second", "call"], Field(description="What the rate is of.")] = "second"
    gap: Annotated[
        float, Field(ge=0, le=1e6, description="The least distance of two faults, in seconds or counted calls.")
    ] = 0.0
    kinds: Annotated[
        tuple[FaultKind, ...], Field(min_length=1, description="What is drawn from; twice the same: twice as often.")
    ] = (
        FaultKind.KILL,
        FaultKind.STOP,
    )
    seconds: Annotated[tuple[Seconds, Seconds], Field(description="Between these a fault's length is drawn.")] = (
        0.05,
        0.5,
    )
    never: Annotated[float, Field(ge=0, le=1, description="The share of stops that are never continued.")] = 0.5
    bytes: Bytes = 64 * _MIB
    limit: Annotated[int | None, Field(ge=1, description="The most faults of a replica; unset: no end.")] = None


class FaultOptions(Options):
    """``[extensions.faults]``."""

    script: Annotated[tuple[Fault, ...], Field(description="Faults, each with its time.")] = ()
    random: Annotated[RandomFaults | None, Field(description="Faults that are drawn.")] = None
    call: Annotated[
        str, Field(description='The calls that are counted, and whose answers suffer; "any": all, those of starts too.')
    ] = "execute_model"

    @property
    def kinds(self) -> frozenset[FaultKind]:
        """All kinds that may come."""
        return frozenset(one.kind for one in self.script) | frozenset(self.random.kinds if self.random else ())

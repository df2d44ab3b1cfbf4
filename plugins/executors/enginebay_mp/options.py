"""What a user may set for ``mp``, under ``[executor.options]``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from enginebay.interfaces import Options
from enginebay_mp.binding import cpus_of

CpuSets = tuple[str, ...]


class MpOptions(Options):
    """Options of the executor ``mp``."""

    bind_cpus: Annotated[
        Literal["off", "spread"] | CpuSets,
        Field(
            description='CPUs of each worker: "off", "spread" (shared out evenly, by NUMA node), '
            'or a list of one set per rank, such as ["0-3", "4-7"].'
        ),
    ] = "off"
    ring_slots: Annotated[
        int, Field(ge=16, le=65536, description="Slots of each shared-memory ring; a larger frame takes several.")
    ] = 1024
    slot_bytes: Annotated[
        int, Field(ge=64, le=1 << 20, multiple_of=64, description="Bytes of a slot of the rings; a multiple of 64.")
    ] = 1024

    @field_validator("bind_cpus")
    @classmethod
    def _readable(cls, value: str | CpuSets) -> str | CpuSets:
        if not isinstance(value, str):
            for one in value:
                cpus_of(one)
        return value

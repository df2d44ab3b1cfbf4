"""What a front end is told of the engine when it comes."""

from __future__ import annotations

import os
import socket as sockets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from enginebay.config import DeadlinesConfig
from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.port import change_patience, command_patience, patience
from enginebay.engine.service.words import limits_told
from enginebay.messages import ModelInfo, Welcome
from enginebay.transport.front_keys import Role

__all__ = ["Served", "boot_id", "welcome"]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What front ends are told of the engine, and how long it has patience with them, in seconds.

    By ``deadlines`` front ends know when an answer will not come. ``stall``: without a sign that what was sent is
    read, ``resume``: within which a front end whose connection broke may come back; then its requests are aborted.
    """

    model: ModelInfo
    tokenizer: Path | None
    in_force: dict[str, str]
    limits: AdmissionLimits
    deadlines: DeadlinesConfig = field(default_factory=DeadlinesConfig)
    stall: float = 60.0
    resume: float = 10.0
    groups: int = 1


def welcome(
    served: Served, *, session: str, roles: tuple[Role, ...], known: tuple[str, ...], control_port: int
) -> Welcome:
    """The greeting of one session."""
    return Welcome(
        session=session,
        pid=os.getpid(),
        host=sockets.gethostname(),
        boot=boot_id(),
        model=msgspec.structs.replace(served.model, config={}),
        tokenizer="" if served.tokenizer is None else str(served.tokenizer),
        in_force=served.in_force,
        limits=limits_told(served.limits),
        roles=roles,
        known=known,
        control_port=control_port,
        patience=patience(served.deadlines.step, served.deadlines.stop),
        command_patience=command_patience(served.deadlines, served.groups),
        groups=served.groups,
        change_patience=change_patience(served.deadlines, served.groups),
    )


def boot_id() -> str:
    """Which start of this machine it is: a pid means nothing in another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""

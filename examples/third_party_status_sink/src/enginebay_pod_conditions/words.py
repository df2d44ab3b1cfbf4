"""A worker's record as a pod condition, and back: a line for people, and behind it the record for programs. Pure."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from enginebay.interfaces import Stored
from enginebay.messages import Phase, Slot, StatusRecord

EMPTY = "Empty"
"""The reason of a condition whose slot holds nobody: conditions are kept, and say so."""


def condition_type(prefix: str, slot: Slot) -> str:
    """``workers.enginebay/group-0.rank-1.cuda-1``; devices that cannot stand there are named by a hash."""
    device = slot.device.replace(":", "-")
    if not re.fullmatch(r"[a-z]{1,16}(:[0-9]{1,4})?", slot.device):
        device = f"x-{hashlib.sha256(slot.device.encode()).hexdigest()[:12]}"
    return f"{prefix}/group-{slot.group}.rank-{slot.rank}.{device}"


def condition_of(record: StatusRecord, prefix: str) -> dict[str, Any]:
    """The condition, less the time of its last transition."""
    status = record.status
    line = f"{status.reason}: {status.message}" if status.reason and status.message else status.message or status.reason
    return {
        "type": condition_type(prefix, status.slot),
        "status": "True" if status.phase is Phase.READY else "False",
        "reason": str(status.phase),
        "message": f"{line}\n{msgspec.json.encode(record).decode()}",
    }


def emptied(prefix: str, slot: Slot) -> dict[str, Any]:
    """The condition of a slot in which nobody is left."""
    return {
        "type": condition_type(prefix, slot),
        "status": "False",
        "reason": EMPTY,
        "message": "no worker is left in this slot",
    }


def stored(reason: str | None, message: str | None) -> Stored | None:
    """What a condition of ours holds; None: nobody, also when somebody has written there what is no record."""
    if reason == EMPTY:
        return None
    try:
        record = msgspec.json.decode((message or "").partition("\n")[2].encode(), type=StatusRecord)
    except msgspec.DecodeError:
        return None
    return Stored(record=record, tag=hashlib.sha256(f"{reason}\n{message}".encode()).hexdigest()[:32])


def rfc3339(wall: float) -> str:
    """Seconds of the day's clock as Kubernetes writes them, whole."""
    return datetime.fromtimestamp(int(wall), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""What plugins carry beside a step, in its annex: bounded, since it crosses to every worker, in every step."""

from __future__ import annotations

from typing import Final

from enginebay.errors import shown

__all__ = ["MAX_ANNEX", "fault_of_annex"]

MAX_ANNEX: Final = 1 << 20
"""Bytes of all entries of one annex, their names included."""


def fault_of_annex(annex: object) -> str:
    """What is wrong with an annex that is not empty; "" when it can be sent."""
    if not isinstance(annex, dict):
        return f"an annex that is {shown(annex, 80)}, and must be a dict"
    for name, value in annex.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            return f"an annex with {shown(name, 80)} in it, which must be a str with bytes"
    size = sum(len(name.encode("utf-8", "surrogatepass")) + len(value) for name, value in annex.items())
    return f"an annex of {size} bytes, and {MAX_ANNEX} are the most" if size > MAX_ANNEX else ""

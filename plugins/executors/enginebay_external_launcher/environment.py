"""What the launcher has told this process: its rank and the world's size, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from enginebay.errors import CapabilityError
from enginebay.interfaces import OwnRank

NEEDED: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_NUMBERS: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def own_rank(environ: Mapping[str, str] = os.environ) -> OwnRank:
    """Raises ``CapabilityError`` naming the variables that are missing, or the one that makes no sense."""
    missing = [name for name in NEEDED if not environ.get(name)]
    if missing:
        raise CapabilityError(
            f"executor 'external_launcher' runs where a launcher has started one process per rank, and "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: start the program with "
            "'torchrun --nproc-per-node N program.py', or with another launcher that sets "
            f"{', '.join(NEEDED[:-1])} and {NEEDED[-1]}; or choose executor 'mp', which starts its workers itself"
        )
    rank, world_size, local_rank = (_number(name, environ[name]) for name in _NUMBERS)
    if not rank < world_size:
        raise CapabilityError(f"RANK = {rank}, and WORLD_SIZE = {world_size}: the ranks are 0 to {world_size - 1}")
    per_host = environ.get("LOCAL_WORLD_SIZE")
    return OwnRank(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        ranks_per_host=_number("LOCAL_WORLD_SIZE", per_host) if per_host else None,
    )


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or (name.endswith("WORLD_SIZE") and int(text) == 0):
        raise CapabilityError(f"{name} = {text!r} in the environment is not the number that a launcher sets")
    return int(text)

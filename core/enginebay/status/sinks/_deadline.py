"""The end of a sink's call, by the clock on which sockets wait."""

from __future__ import annotations

import time  # noqa: TID251  # the thread that waits here is the sink's own, and a server keeps no simulated time

__all__ = ["Deadline"]


class Deadline:
    """So many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then. Raises ``TimeoutError`` when there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

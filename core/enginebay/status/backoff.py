"""How long to wait before something is tried again: twice as long each time, up to a limit, never all at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BackOff"]


@dataclass(frozen=True, kw_only=True)
class BackOff:
    """``first``: seconds after the first failure, twice that after the second, ``most`` at most. ``jitter``: the share
    of it by which a draw from 0 to 1 shortens it, so that many do not come back at one moment."""

    first: float
    most: float
    jitter: float = 0.2

    def after(self, failures: int, draw: float) -> float:
        """Seconds to wait after so many failures in a row; 0.0 after none."""
        if failures <= 0:
            return 0.0
        wait = min(self.most, self.first * 2.0 ** min(failures - 1, 60))
        return wait * (1.0 - self.jitter * draw)

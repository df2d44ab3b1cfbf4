"""Which request kills the workers that it runs on, found with as few deaths as can be. Pure.

A death accuses all requests of its step, and a request that commits a token afterwards is acquitted: it has got past
where it was. Whoever is accused twice is a suspect, and runs one step alone; who dies alone is convicted, at the third
death, and who does not is acquitted. So no request fails for having stood beside another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["Suspicion"]


class Suspicion:
    """Of one group's requests, by id. ``alone`` is the suspect that is to run by itself now; None: all may run."""

    def __init__(self) -> None:
        self._accused: dict[str, None] = {}
        self._suspects: deque[str] = deque()

    @property
    def alone(self) -> str | None:
        """The first suspect that is left."""
        return self._suspects[0] if self._suspects else None

    @property
    def known(self) -> tuple[str, ...]:
        """Everybody that is accused, the suspects among them."""
        return tuple(self._accused)

    def died(self, request_ids: Iterable[str]) -> str | None:
        """A worker was lost in a step of these requests. Returns the one that is convicted, if one is."""
        present = list(request_ids)
        if (alone := self.alone) is not None:
            if present != [alone]:
                return None  # before it ran: this death accuses nobody
            self._acquit(alone)  # it is there no more
            self._suspects.clear()  # the one that it was is found: all others are accused again before they run alone
            return alone
        self._suspects.extend(one for one in present if one in self._accused)
        self._accused |= dict.fromkeys(present)
        return None

    def accuse(self, request_id: str) -> None:
        """It comes from where a worker was lost in a step of it."""
        self._accused[request_id] = None

    def is_suspect(self, request_id: str) -> bool:
        """Whether it is to run alone."""
        return request_id in self._suspects

    def committed(self, request_ids: Iterable[str]) -> None:
        """A step of these requests came to its end, and each has a token of it."""
        for one in request_ids:
            self._acquit(one)

    def ended(self, request_id: str) -> None:
        """The request is there no more."""
        self._acquit(request_id)

    def _acquit(self, request_id: str) -> None:
        self._accused.pop(request_id, None)
        if request_id in self._suspects:
            self._suspects.remove(request_id)

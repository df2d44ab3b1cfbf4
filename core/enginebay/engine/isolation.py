"""Whom the scheduler is given: all requests, or one alone that may be what workers die of, until that is known.

A step in which workers are lost accuses its requests, by ``Suspicion``. While one is to run alone all others wait in
the ledger, and one step is in flight at a time, so that the next loss is of that request or of none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from enginebay.engine.ledger import Row
from enginebay.engine.parts import CoreParts
from enginebay.engine.pipeline import Pipeline
from enginebay.engine.requests import Requests
from enginebay.engine.suspicion import Suspicion
from enginebay.messages import EngineRequest

__all__ = ["Isolation"]


class Isolation:
    """One group's. ``alone`` is the request that the scheduler has alone; None: it has all.

    ``alert``: somebody is accused, and each step has to be told of. Without a loss it is False for ever.
    ``convicted``: a request was ended for what workers died of, and none has got a token since.
    """

    def __init__(self, requests: Requests, pipeline: Pipeline, parts: CoreParts) -> None:
        self.alone: str | None = None
        self.alert = False
        self._requests, self._pipeline, self._parts = requests, pipeline, parts
        self._suspicion = Suspicion()
        self._convict: str | None = None
        self._slots: dict[str, tuple[str, ...]] = {}
        self._elsewhere: tuple[str, ...] = ()
        self.convicted = False

    def accuse(self) -> Row | None:
        """The workers were lost in the steps in flight. Returns the request that is convicted of it, if one is."""
        flights = self._pipeline.in_flight
        lives = [live for one in flights for live, _ in one.rows.values()]
        rows = {live.row.request_id: live.row for live in lives if live.row.finish is None}
        if not rows:
            return None  # they did not die of a request
        self.alert = True
        convict = self._suspicion.died(rows)
        if convict is None:
            return None
        self._convict = convict
        self._elsewhere += self._slots.pop(convict, ())
        return rows[convict]

    def binds(self, request_id: str) -> bool:
        """Whether the request has to stay here: it is to run alone, or was found to be what workers die of."""
        return request_id == self._convict or self._suspicion.is_suspect(request_id)

    def leave(self, request_id: str) -> tuple[str, ...]:
        """The request goes to another group. Returns the slots whose workers were lost in a step of it, since its last
        token; none: it is not accused."""
        slots = self._slots.pop(request_id, ())
        if request_id in self._suspicion.known:
            slots = tuple(dict.fromkeys((*slots, *(slot.name for slot in self._parts.roster.slots))))
            self._suspicion.ended(request_id)
        return slots

    def join(self, request_id: str, slots: tuple[str, ...]) -> None:
        """The request comes from another group, accused by the loss of the workers in these slots."""
        self._suspicion.accuse(request_id)
        self._slots[request_id] = slots
        self.alert = True

    def committed(self, request_ids: Iterable[str]) -> None:
        """A step brought these a token: none of them is what workers die of.

        And workers that run are sound: what they died of before was the one that is convicted.
        """
        self._suspicion.committed(request_ids)
        if self.convicted and request_ids:
            self.convicted = False
            self._parts.roster.forgive(self._elsewhere)
            self._elsewhere = ()

    @property
    def undecided(self) -> bool:
        """Whether it is being found out what workers died of."""
        return bool(self._suspicion.known) or self.alone is not None

    def is_over(self) -> bool:
        """Whether another is to run alone now, or all: then the scheduler has to be filled anew. No step is in flight
        while one runs alone, between two steps."""
        for one in self._suspicion.known:
            if self._requests.ledger.get(one) is None:
                self._suspicion.ended(one)
        if self._slots:
            known = self._suspicion.known
            self._slots = {one: slots for one, slots in self._slots.items() if one in known}
        self.alert = self.undecided or self.convicted
        return self.alone != self._suspicion.alone

    def admitted(self, requests: Sequence[EngineRequest]) -> Sequence[EngineRequest]:
        """Those of the live requests that a fresh scheduler is given."""
        self._convict = None
        self.is_over()  # who ended meanwhile is not waited for
        self.alone = self._suspicion.alone
        self._pipeline.depth = self._parts.depth if self.alone is None else 1
        return requests if self.alone is None else [one for one in requests if one.request_id == self.alone]

"""Mutants of restarts: how often and when workers come back, which request they died of, and what is said of them."""

from __future__ import annotations

from typing import Any

from enginebay.engine.isolation import Isolation
from enginebay.engine.rebirth import Rebirth
from enginebay.engine.roster import Roster
from enginebay.engine.suspicion import Suspicion
from enginebay.status.book import StatusBook
from enginebay.status.restarts import GiveUp, Restart, Restarts
from enginebay.status.sync import SinkSync
from mutants.patching import Patch

__all__ = ["MUTANTS"]


def restarts_have_no_budget(patch: Patch) -> None:
    """Workers that end again and again are started for ever."""

    def after(self: Restarts, ending: Any, draw: float) -> Any:
        verdict = original(self, ending, draw)
        return verdict if isinstance(verdict, Restart) else Restart(after=0.0, number=1)

    original = patch(Restarts, "after", after)


def restarts_do_not_wait(patch: Patch) -> None:
    """Workers that end again and again are started at once each time."""
    patch(Rebirth, "_back_off", lambda self, restart, setback: None)


def restarts_are_given_up_early(patch: Patch) -> None:
    """A budget of so many restarts allows one less."""

    def after(self: Restarts, ending: Any, draw: float) -> Any:
        verdict = original(self, ending, draw)
        spent = isinstance(verdict, Restart) and verdict.number == self.rules.per_slot
        return GiveUp(why="enough") if spent else verdict

    original = patch(Restarts, "after", after)


def restarts_of_a_convict_are_not_forgiven(patch: Patch) -> None:
    """What a convicted request cost counts against the workers that come after it."""
    patch(Roster, "forgive", lambda self, elsewhere=(): None)


def restarts_are_forgiven_without_a_token(patch: Patch) -> None:
    """A conviction alone proves the workers sound."""

    def admitted(self: Isolation, requests: Any) -> Any:
        if self.convicted:
            self._parts.roster.forgive()
        return original(self, requests)

    original = patch(Isolation, "admitted", admitted)


def suspects_run_beside_others(patch: Patch) -> None:
    """The scheduler is given all requests, though one is to run alone."""
    patch(Isolation, "admitted", lambda self, requests: requests)


def nobody_is_convicted(patch: Patch) -> None:
    """A request that workers die of is put to them for ever."""
    patch(Suspicion, "died", lambda self, request_ids: None)


def first_of_a_step_is_convicted(patch: Patch) -> None:
    """Whoever stands first in two steps in which workers were lost is ended."""

    def died(self: Suspicion, request_ids: Any) -> Any:
        present = list(request_ids)
        return original(self, present) or next((one for one in present if one in self._suspects), None)

    original = patch(Suspicion, "died", died)


def token_acquits_nobody(patch: Patch) -> None:
    """Whoever was accused once stays so, whatever it has got since."""
    patch(Suspicion, "committed", lambda self, request_ids: None)


def old_workers_are_not_stopped(patch: Patch) -> None:
    """New workers are started beside what is left of the old ones."""

    def stop(self: Roster, executor: Any, deadline: float) -> None:
        for one in self.incarnations:
            self._book.end(one, asked=True)

    patch(Roster, "stop", stop)


def remains_of_workers_are_not_waited_for(patch: Patch) -> None:
    """New workers are started while the old ones' things are still there."""
    patch(Roster, "reclaim", lambda self, limit: None)


def ends_of_workers_are_not_told(patch: Patch) -> None:
    """The status of a worker that is gone stays as it was."""
    patch(StatusBook, "end", lambda self, incarnation_id, **how: True)


def failed_writes_count_as_written(patch: Patch) -> None:
    """A sink that was down when something changed is never told of it."""

    def failed(self: SinkSync, error: BaseException) -> None:
        original(self, error)
        for entry in self._book.entries():
            if entry.status.incarnation.id in self._seen:
                self._seen[entry.status.incarnation.id].version = entry.record.version

    original = patch(SinkSync, "_failed", failed)


MUTANTS = (
    restarts_have_no_budget,
    restarts_do_not_wait,
    restarts_are_given_up_early,
    restarts_of_a_convict_are_not_forgiven,
    restarts_are_forgiven_without_a_token,
    suspects_run_beside_others,
    nobody_is_convicted,
    first_of_a_step_is_convicted,
    token_acquits_nobody,
    old_workers_are_not_stopped,
    remains_of_workers_are_not_waited_for,
    ends_of_workers_are_not_told,
    failed_writes_count_as_written,
)

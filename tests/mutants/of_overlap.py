"""Mutants of what overlaps: masks and the tokens that they wait for, and proposals that were not verified yet."""

from __future__ import annotations

from typing import Any

from enginebay.engine.pipeline import Pipeline
from enginebay.engine.requests import Requests
from enginebay.engine.steps import InFlight
from enginebay.scheduling import MechanicsScheduler
from mutants.patching import Patch

__all__ = ["MUTANTS"]


def masks_do_not_wait_for_the_token_before(patch: Patch) -> None:
    """Masks are made of what is committed, though a token that comes first is on its way."""
    patch(InFlight, "knows_masks", lambda self: True)


def next_step_does_not_wait_for_the_masks(patch: Patch) -> None:
    """A step is sent while the workers hold the scores of the one before it."""

    def fill(self: Pipeline) -> Any:
        waiting = [flight for flight in self.in_flight if flight.owes_masks]
        for flight in waiting:
            self._sample(flight)
        while len(self.in_flight) < self._parts.depth and self._launch():
            pass
        return self.in_flight[0] if self.in_flight else None

    patch(Pipeline, "fill", fill)


def grammars_do_not_follow_the_commit(patch: Patch) -> None:
    """A token under a grammar is committed, and the grammar stays where it was."""

    def settle_row(self: Requests, *args: Any, **kwargs: Any) -> Any:
        grammars = self._grammars
        fault, grammars.fault = grammars.fault, lambda request_id, drawn: None  # type: ignore[method-assign]  # see above
        try:
            return original(self, *args, **kwargs)
        finally:
            grammars.fault = fault  # type: ignore[method-assign]  # see above

    original = patch(Requests, "_settle_row", settle_row)


def rejected_proposals_count_as_computed(patch: Patch) -> None:
    """What the cache holds of proposals that did not hold is taken for the request's own."""
    patch(MechanicsScheduler, "_roll_back", lambda self, record: None)


MUTANTS = (
    masks_do_not_wait_for_the_token_before,
    next_step_does_not_wait_for_the_masks,
    grammars_do_not_follow_the_commit,
    rejected_proposals_count_as_computed,
)

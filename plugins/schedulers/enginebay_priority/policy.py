"""The policy: the smallest (priority, arrival) goes first, and the largest gives way."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.interfaces import NoOptions, Policy, RequestView


class MostUrgentFirst(Policy[NoOptions]):
    """Requests in order of (priority, arrival); a waiting one takes the place of a running one that is less urgent.

    A preempted request has no privilege: it waits where its key puts it, or the urgent request for which it gave way
    would wait behind it. Among equals that is the front all the same, since it came before those that never ran.
    """

    may_overtake_preempted = True
    preempts_running = True

    def key(self, request: RequestView) -> tuple[int, int]:
        """Priority, then arrival."""
        return (request.priority, request.arrival_number)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        """The least urgent, the latest among equals; nobody when ``needed`` is no more urgent than that one.

        A request that waits takes from those of a larger priority alone: among equals who runs goes on running, or
        two that came one after the other would take turns at starting again.
        """
        index = max(range(len(candidates)), key=lambda at: self.key(candidates[at]))
        worst = candidates[index]
        if needed.num_computed_tokens == 0:  # it waits
            return index if worst.priority > needed.priority else None
        return index if self.key(worst) >= self.key(needed) else None

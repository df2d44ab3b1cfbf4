"""The policy: who came first goes first, and who came last gives way."""

from __future__ import annotations

from enginebay.interfaces import NoOptions, Policy, RequestView


class FirstComeFirstServed(Policy[NoOptions]):
    """Requests in order of arrival; the default victim, the last of the running line, is the right one too."""

    def key(self, request: RequestView) -> tuple[int]:
        """The order of arrival."""
        return (request.arrival_number,)

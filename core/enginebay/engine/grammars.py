"""The core's side of grammars: who waits for one, what leaves it at the commit, and what the next step's masks are.

A request is given to the scheduler when its grammar is ready, so no policy knows of grammars; until then it is a live
request like any other, whose deadline and abort work. One that cannot be compiled, or followed, ends alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from msgspec.structs import replace

from enginebay.errors import RequestError
from enginebay.messages import EngineRequest, GrammarOutput, NewRequest, StructuredOutput
from enginebay.runtime import Runtime
from enginebay.structured import GrammarRejected, GrammarState, GrammarStore

__all__ = ["Grammars", "for_workers"]

_AGREED_SECONDS: Final = 120.0
"""How long ranks that schedule alike wait for one grammar."""


class Grammars:
    """The grammars of the live requests, and the requests that are held until theirs is ready.

    ``store`` None: no request has one. ``agreed`` is the runtime of an engine that must schedule as others do: it waits
    for a grammar, so that none goes ahead.
    """

    def __init__(self, store: GrammarStore | None = None, *, agreed: Runtime | None = None) -> None:
        self._store = store
        self._agreed = agreed
        self._held: dict[str, EngineRequest] = {}

    def hold(self, request: EngineRequest) -> None:
        """Take a request that draws under a grammar, with what it has committed."""
        assert request.params.structured is not None, "the others are never held"
        self._opened.open(request.request_id, request.params.structured, request.committed_token_ids)
        self._held[request.request_id] = request

    def holds(self, request_id: str) -> bool:
        """Whether the request has not been released."""
        return request_id in self._held

    def released(self) -> Iterator[tuple[EngineRequest, RequestError | None]]:
        """Each held request of which it is known how its compiling went, with the error that it ends with, if any.

        It is ``InvalidRequest`` where the grammar is at fault: the request has not run.
        """
        for request_id, request in list(self._held.items()):
            if self._agreed is not None:
                self._opened.settle(request_id, self._wait)
            if self._opened.ready(request_id):
                del self._held[request_id]
                yield request, self._opened.error(request_id)

    def masks(self, scheduled: Sequence[tuple[str, tuple[int, ...]]]) -> GrammarOutput | None:
        """What these requests may draw after what is committed of them, and after each of their proposals."""
        return None if self._store is None else self._store.masks(scheduled)

    def fault(self, request_id: str, drawn: Sequence[int]) -> str | None:
        """Go on by tokens that are about to be committed; returns why the request must end instead, if it must."""
        try:
            self._opened.accept(request_id, drawn)
        except GrammarRejected as error:
            return f"its answer cannot go on under its grammar: {error}"
        return None

    def close(self, request_id: str) -> None:
        """The request has ended."""
        self._held.pop(request_id, None)
        self._opened.close(request_id)

    def stop(self) -> None:
        """Nothing is compiled any more. Idempotent."""
        if self._store is not None:
            self._store.shut()

    @property
    def _opened(self) -> GrammarStore:
        assert self._store is not None, "who has no grammars refuses the request"
        return self._store

    def _wait(self, future: Future[GrammarState]) -> GrammarState:
        assert self._agreed is not None, "it was looked at"
        return self._agreed.wait(future, self._agreed.clock.now() + _AGREED_SECONDS)


def for_workers(new: NewRequest) -> NewRequest:
    """What workers are told of a request: that it has a shape, and not which. They are sent masks."""
    params = new.params
    if params.structured is None:
        return new
    return replace(new, params=replace(params, structured=StructuredOutput()))

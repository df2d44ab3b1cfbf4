"""Mutants of the requests and their ledger: what exists, what is streamed, and who has ended."""

from __future__ import annotations

from typing import Any

from enginebay.engine.core import EngineCore
from enginebay.engine.ledger import Ledger
from enginebay.engine.requests import Requests
from mutants.patching import Patch

__all__ = ["MUTANTS"]


def tokens_are_streamed_before_they_are_committed(patch: Patch) -> None:
    """A delta goes out, and what it says is committed only with the next one."""

    def commit(self: Ledger, row: Any, from_offset: int, token_ids: Any, **kwargs: Any) -> Any:
        delta = original(self, row, from_offset, token_ids, **kwargs)
        if row.finish is None and token_ids:
            late.setdefault(id(row), []).append(row.committed.pop())
        return delta

    late: dict[int, list[int]] = {}
    original = patch(Ledger, "commit", commit)


def cancelled_request_gets_its_token(patch: Patch) -> None:
    """What came from clients during a step is looked at after the step's commit."""

    def run(self: EngineCore, drain: Any) -> bool:
        scheduled: bool = original(self, None)
        if drain is not None:
            drain()
        return scheduled

    original = patch(EngineCore, "_run", run)


def ended_row_stays_in_the_ledger(patch: Patch) -> None:
    """A request that has ended is still known."""

    def close(self: Ledger, row: Any, *args: Any, **kwargs: Any) -> Any:
        delta = original(self, row, *args, **kwargs)
        self._rows[row.request_id] = row
        return delta

    original = patch(Ledger, "_close", close)


def deadlines_are_not_looked_at(patch: Patch) -> None:
    """A request whose time is over runs on."""
    patch(Requests, "expired", lambda self, now: [])


def prompt_logprobs_are_sent_again(patch: Patch) -> None:
    """What is computed again of a prompt is streamed again."""
    import enginebay.engine.requests as module

    def news(row: Any, output: Any) -> Any:
        chunk = output.prompt_logprobs.get(row.request_id)
        return () if chunk is None else chunk.entries

    patch(module, "prompt_news", news)


def ended_requests_computed_tokens_are_kept(patch: Patch) -> None:
    """A map keeps what was known of a request that has ended."""

    def close(self: Requests, row: Any, now_ns: int) -> None:
        live = self._live[row.request_id]
        original(self, row, now_ns)
        self._live.add(live)

    original = patch(Requests, "_close", close)


MUTANTS = (
    tokens_are_streamed_before_they_are_committed,
    cancelled_request_gets_its_token,
    ended_row_stays_in_the_ledger,
    deadlines_are_not_looked_at,
    prompt_logprobs_are_sent_again,
    ended_requests_computed_tokens_are_kept,
)

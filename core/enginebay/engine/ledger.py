"""The core's record of every live request and its committed tokens: the one place where a token begins to exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from enginebay.messages import EngineRequest, FinishReason, RequestOutput, SamplingParams, Usage

__all__ = ["Ledger", "LedgerGap", "Row"]


class LedgerGap(AssertionError):
    """A commit that does not start where the row ends: a token would be lost or come twice. Always a bug of ours."""


@dataclass(kw_only=True, slots=True)
class Row:
    """One request: what was asked, and what was committed. Nothing that can be derived, and nothing that nobody reads.

    ``deadline`` is monotonic seconds. ``seed`` is the effective one, drawn at admission. ``recoveries`` counts how
    often the request was given to a fresh scheduler.
    """

    request_id: str
    arrival: float
    arrival_number: int
    deadline: float | None
    tenant: str
    priority: int
    params: SamplingParams
    seed: int
    prompt_token_ids: tuple[int, ...]
    adapter: str
    cache_salt: str
    traceparent: str
    extra: dict[str, bytes]
    committed: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    recoveries: int = 0

    def usage(self) -> Usage:
        """Committed tokens, counted once; work done again is apart."""
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=len(self.committed),
            cached_tokens=self.cached_tokens,
            recomputed_tokens=self.recomputed_tokens,
            preemptions=self.preemptions,
        )

    def request(self) -> EngineRequest:
        """The request as a fresh scheduler is given it: prompt plus what exists already."""
        return EngineRequest(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            params=self.params,
            seed=self.seed,
            arrival=self.arrival,
            arrival_number=self.arrival_number,
            committed_token_ids=tuple(self.committed),
            priority=self.priority,
            tenant=self.tenant,
            deadline=self.deadline,
            cache_salt=self.cache_salt,
            adapter=self.adapter,
            traceparent=self.traceparent,
            extra=self.extra,
        )


class Ledger:
    """All unfinished rows, in order of arrival; ended ones leave at once."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """The live rows in order of arrival."""
        return iter(list(self._rows.values()))

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._rows

    def get(self, request_id: str) -> Row | None:
        """The live row of that id."""
        return self._rows.get(request_id)

    def open(self, request: EngineRequest) -> Row:
        """A row for a request that was admitted. Its id is not in use."""
        assert request.request_id not in self._rows, f"request {request.request_id!r} has a row already"
        row = Row(
            request_id=request.request_id,
            arrival=request.arrival,
            arrival_number=request.arrival_number,
            deadline=request.deadline,
            tenant=request.tenant,
            priority=request.priority,
            params=request.params,
            seed=request.seed,
            prompt_token_ids=request.prompt_token_ids,
            adapter=request.adapter,
            cache_salt=request.cache_salt,
            traceparent=request.traceparent,
            extra=request.extra,
            committed=list(request.committed_token_ids),
        )
        self._rows[row.request_id] = row
        return row

    def commit(
        self,
        row: Row,
        from_offset: int,
        token_ids: Sequence[int],
        *,
        text: str = "",
        finish: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> RequestOutput:
        """Make these tokens exist, and return the delta that says so.

        Raises ``LedgerGap`` when ``from_offset`` is not the row's length, or the row has ended.
        """
        if row.finish is not None or self._rows.get(row.request_id) is not row:
            raise LedgerGap(f"request {row.request_id!r} has ended and cannot commit {len(token_ids)} tokens")
        if from_offset != len(row.committed):
            raise LedgerGap(
                f"request {row.request_id!r}: tokens from offset {from_offset}, but {len(row.committed)} are committed"
            )
        row.committed.extend(token_ids)
        row.stop_reason = stop_reason
        if finish is not None:
            return self._close(row, finish, from_offset=from_offset, token_ids=tuple(token_ids), text=text)
        return RequestOutput(request_id=row.request_id, offset=from_offset, token_ids=tuple(token_ids), text=text)

    def end(self, row: Row, finish: FinishReason, *, text: str = "", error: str | None = None) -> RequestOutput:
        """End a row from outside (abort, error); what was committed stands."""
        assert row.finish is None, f"request {row.request_id!r} ends twice"
        row.error = error
        return self._close(row, finish, from_offset=len(row.committed), token_ids=(), text=text)

    def _close(
        self, row: Row, finish: FinishReason, *, from_offset: int, token_ids: tuple[int, ...], text: str
    ) -> RequestOutput:
        row.finish = finish
        del self._rows[row.request_id]
        return RequestOutput(
            request_id=row.request_id,
            offset=from_offset,
            token_ids=token_ids,
            text=text,
            finish_reason=finish,
            stop_reason=row.stop_reason,
            usage=row.usage(),
            error=row.error,
        )

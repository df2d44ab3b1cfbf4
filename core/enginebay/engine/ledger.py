"""The core's record of every live request and its committed tokens: the one place where a token begins to exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from enginebay.errors import DuplicateRequest
from enginebay.messages import EngineRequest, FinishReason, RequestOutput, SamplingParams, TokenLogprob, Usage

__all__ = ["Ledger", "LedgerGap", "Row", "choice_id"]


def choice_id(request_id: str, choice: int, n: int) -> str:
    """The id of a row: the client's own, or one made of it for each of several choices."""
    return request_id if n == 1 else f"{request_id}#{choice}"


class LedgerGap(AssertionError):
    """A commit that does not start where the row ends: a token would be lost or come twice. Always a bug of ours."""


@dataclass(kw_only=True, slots=True)
class Row:
    """One choice of a request: what was asked, and what was committed. Nothing that can be derived, or nobody reads.

    ``parent_id`` is the client's id when it asked for several choices, else "". ``deadline`` is monotonic seconds.
    ``seed`` is the effective one, drawn at admission. ``recoveries`` counts how often the request was given to a fresh
    scheduler, ``prompt_logprobs_delivered`` how many of the prompt's log-probabilities the client was sent.
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
    choice: int = 0
    parent_id: str = ""
    committed: list[int] = field(default_factory=list)
    prompt_logprobs_delivered: int = 0
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    recoveries: int = 0

    @property
    def client_id(self) -> str:
        """The id that the client gave."""
        return self.parent_id or self.request_id

    def usage(self) -> Usage:
        """Committed tokens, counted once; work done again is apart. The prompt is the first choice's alone."""
        return Usage(
            prompt_tokens=0 if self.choice else len(self.prompt_token_ids),
            completion_tokens=len(self.committed),
            cached_tokens=0 if self.choice else self.cached_tokens,
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
            choice=self.choice,
            parent_id=self.parent_id,
            extra=self.extra,
        )


class Ledger:
    """All unfinished rows, in order of arrival; ended ones leave at once."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._mixed = False
        self._choices: dict[str, dict[int, Row]] = {}
        """The live rows of requests for several choices, by the client's id and the number of the choice."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """The live rows in order of arrival."""
        if self._mixed:
            self._rows = {
                row.request_id: row for row in sorted(self._rows.values(), key=lambda row: row.arrival_number)
            }
            self._mixed = False
        return iter(list(self._rows.values()))

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._rows

    def get(self, request_id: str) -> Row | None:
        """The live row of that id."""
        return self._rows.get(request_id)

    def of_client(self, request_id: str) -> list[Row]:
        """The live rows under an id that a client gave: one, or those of its choices that have not ended."""
        row = self._rows.get(request_id)
        if row is not None and not row.parent_id:
            return [row]
        return list(self._choices.get(request_id, {}).values())

    def check_free(self, request_id: str, n: int) -> None:
        """Raise ``DuplicateRequest`` when an id that a request for ``n`` choices needs is in use."""
        for wanted in dict.fromkeys([request_id, *(choice_id(request_id, choice, n) for choice in range(n))]):
            user = self._rows.get(wanted)
            if user is None and wanted not in self._choices:
                continue
            what = "an unfinished request"
            if user is not None and user.parent_id:
                what = f"choice {user.choice} of the unfinished request {user.parent_id!r}"
            why = "" if wanted == request_id else f", which {n} choices of {request_id!r} need,"
            raise DuplicateRequest(
                f"request id {wanted!r}{why} is in use by {what}: choose another, or abort that one",
                param="request_id",
            )

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
            choice=request.choice,
            parent_id=request.parent_id,
            committed=list(request.committed_token_ids),
        )
        self._add(row)
        return row

    def leave(self, row: Row) -> None:
        """Give a live row away, with what is committed of it: another ledger enters it."""
        assert row.finish is None, f"request {row.request_id!r} has ended"
        self._remove(row)

    def enter(self, row: Row) -> None:
        """Go on with a row that has left another ledger. Its id is not in use; its number says where it stands."""
        assert row.request_id not in self._rows, f"request {row.request_id!r} has a row already"
        self._add(row)
        self._mixed = True

    def extend(self, row: Row, from_offset: int, token_ids: tuple[int, ...], text: str) -> RequestOutput:
        """``commit`` of tokens with nothing beside them, as nearly all are: every argument and field costs."""
        committed = row.committed
        if row.finish is not None or from_offset != len(committed):
            _check_gap(row, from_offset)
        committed += token_ids
        return RequestOutput(
            request_id=row.parent_id or row.request_id,
            offset=from_offset,
            choice=row.choice,
            token_ids=token_ids,
            text=text,
        )

    def commit(
        self,
        row: Row,
        from_offset: int,
        token_ids: Sequence[int],
        *,
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        prompt_logprobs: tuple[TokenLogprob, ...] = (),
        finish: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> RequestOutput:
        """Make these tokens exist, and return the delta that says so.

        ``logprobs`` has one entry per token, or none at all; ``prompt_logprobs`` are the next ones of the prompt.
        Raises ``LedgerGap`` when ``from_offset`` is not the row's length, or the row has ended.
        """
        if finish is None and not logprobs and not prompt_logprobs:
            return self.extend(row, from_offset, tuple(token_ids), text)
        assert not logprobs or len(logprobs) == len(token_ids), "log-probabilities of other tokens"
        _check_gap(row, from_offset)
        row.committed.extend(token_ids)
        row.prompt_logprobs_delivered += len(prompt_logprobs)
        row.stop_reason = stop_reason
        if finish is not None:
            self._close(row, finish)
        return RequestOutput(
            request_id=row.client_id,
            offset=from_offset,
            choice=row.choice,
            token_ids=tuple(token_ids),
            text=text,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish,
            stop_reason=stop_reason,
            usage=None if finish is None else row.usage(),
        )

    def end(
        self,
        row: Row,
        finish: FinishReason,
        *,
        text: str = "",
        error: str | None = None,
        error_param: str | None = None,
    ) -> RequestOutput:
        """End a row from outside (abort, error); what was committed stands."""
        assert row.finish is None, f"request {row.request_id!r} ends twice"
        row.error = error
        self._close(row, finish)
        return RequestOutput(
            request_id=row.client_id,
            offset=len(row.committed),
            choice=row.choice,
            text=text,
            finish_reason=finish,
            stop_reason=row.stop_reason,
            usage=row.usage(),
            error=error,
            error_param=error_param,
        )

    def _close(self, row: Row, finish: FinishReason) -> None:
        row.finish = finish
        self._remove(row)

    def _add(self, row: Row) -> None:
        self._rows[row.request_id] = row
        if row.parent_id:
            self._choices.setdefault(row.parent_id, {})[row.choice] = row

    def _remove(self, row: Row) -> None:
        del self._rows[row.request_id]
        if row.parent_id:
            del self._choices[row.parent_id][row.choice]
            if not self._choices[row.parent_id]:
                del self._choices[row.parent_id]


def _check_gap(row: Row, from_offset: int) -> None:
    """Raise ``LedgerGap`` unless tokens from that offset on may be committed."""
    if row.finish is not None:
        raise LedgerGap(f"request {row.request_id!r} has ended and can commit nothing more")
    if from_offset != len(row.committed):
        raise LedgerGap(
            f"request {row.request_id!r}: tokens from offset {from_offset}, but {len(row.committed)} are committed"
        )

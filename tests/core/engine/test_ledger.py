"""The ledger: tokens begin to exist in one place, without a gap, and usage is counted once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.ledger import Ledger, LedgerGap
from enginebay.messages import EngineRequest, FinishReason, SamplingParams, Usage


def request(request_id: str = "r", number: int = 0, committed: tuple[int, ...] = ()) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=(1, 2, 3),
        params=SamplingParams(),
        seed=5,
        arrival=1.5,
        arrival_number=number,
        committed_token_ids=committed,
        tenant="t",
        cache_salt="s",
    )


def test_a_commit_that_leaves_a_gap_is_refused() -> None:
    ledger = Ledger()
    row = ledger.open(request())
    ledger.commit(row, 0, [7, 8])
    for offset in (0, 1, 3):
        for finish in (None, FinishReason.STOP):
            with pytest.raises(LedgerGap) as caught:
                ledger.commit(row, offset, [9], finish=finish)
            assert str(caught.value) == f"request 'r': tokens from offset {offset}, but 2 are committed"
    assert row.committed == [7, 8]


def test_an_ended_row_commits_nothing_and_leaves() -> None:
    ledger = Ledger()
    row = ledger.open(request())
    output = ledger.commit(row, 0, [7], finish=FinishReason.STOP, stop_reason="x", text="t")
    assert (output.finish_reason, output.stop_reason, output.text) == (FinishReason.STOP, "x", "t")
    assert output.usage == Usage(prompt_tokens=3, completion_tokens=1)
    for finish in (None, FinishReason.LENGTH):
        with pytest.raises(LedgerGap):
            ledger.commit(row, 1, [8], finish=finish)
    assert len(ledger) == 0
    assert "r" not in ledger


def test_a_row_under_a_reused_id_is_not_the_old_one() -> None:
    ledger = Ledger()
    old = ledger.open(request())
    ledger.end(old, FinishReason.ABORT)
    ledger.open(request(number=1))
    with pytest.raises(LedgerGap):
        ledger.commit(old, 0, [1])


def test_what_a_fresh_scheduler_is_given_has_what_exists_already() -> None:
    ledger = Ledger()
    row = ledger.open(request(committed=(4,)))
    ledger.commit(row, 1, [5, 6])
    assert row.request() == request(committed=(4, 5, 6))


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=10))
def test_offsets_of_deltas_are_gapless_and_unique(commits: list[list[int]]) -> None:
    ledger = Ledger()
    row = ledger.open(request())
    seen: list[int] = []
    for ids in commits:
        output = ledger.commit(row, len(row.committed), ids)
        assert output.offset == len(seen)
        seen += output.token_ids
    last = ledger.end(row, FinishReason.ERROR, error="why")
    assert seen == [token for ids in commits for token in ids]
    assert (last.offset, last.token_ids, last.error) == (len(seen), (), "why")
    assert last.usage is not None
    assert last.usage.completion_tokens == len(seen)

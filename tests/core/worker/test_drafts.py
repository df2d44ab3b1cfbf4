"""Proposals in the runner's table: where they stand in a step, and what is left of them after it."""

from __future__ import annotations

import pytest

from enginebay.messages import NewRequest, RunningRequest, SamplingParams, SchedulerOutput
from enginebay.worker import RequestTable


def new(name: str = "a", known: int = 3) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=tuple(range(10, 10 + known)),
        num_prompt_tokens=known,
        params=SamplingParams(),
        seed=0,
        block_ids=((0,),),
        num_computed_tokens=0,
    )


def running(start: int, *drafts: int, name: str = "a") -> RunningRequest:
    return RunningRequest(request_id=name, num_computed_tokens=start, draft_token_ids=drafts)


@pytest.fixture
def table() -> RequestTable:
    """One request of three tokens, that has drawn 50."""
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=0, new=(new(),), num_scheduled_tokens={"a": 3}))
    table.finish_step({"a": (50,)})
    return table


def begin(table: RequestTable, running: RunningRequest, count: int) -> list[int]:
    (one,) = table.begin_step(SchedulerOutput(step=1, running=(running,), num_scheduled_tokens={"a": count}))
    assert one.samples
    assert one.draft_token_ids == running.draft_token_ids
    return one.token_ids


@pytest.mark.parametrize(
    ("drawn", "known", "computed"),
    [
        ((99,), [10, 11, 12, 50, 99], 4),
        ((7, 99), [10, 11, 12, 50, 7, 99], 5),
        ((7, 8, 9), [10, 11, 12, 50, 7, 8, 9], 6),
        ((), [10, 11, 12, 50], 4),
    ],
)
def test_they_are_computed_and_only_what_was_drawn_stays(
    table: RequestTable, drawn: tuple[int, ...], known: list[int], computed: int
) -> None:
    assert begin(table, running(3, 7, 8), 3) == [50, 7, 8]
    row = table.get("a")
    assert row is not None
    assert row.token_ids == [10, 11, 12, 50]
    output = table.finish_step({"a": drawn})
    assert output.sampled_token_ids == (drawn,)
    assert (row.token_ids, row.num_computed_tokens) == (known, computed)
    if drawn:
        assert begin(table, running(len(known) - 1), 1) == [known[-1]]


@pytest.mark.parametrize("drawn", [(8, 9), (7, 9, 1), (7, 8, 9, 1)])
def test_a_runner_that_goes_on_behind_a_token_that_was_not_proposed(
    table: RequestTable, drawn: tuple[int, ...]
) -> None:
    begin(table, running(3, 7, 8), 3)
    said = ", ".join(map(str, drawn))
    with pytest.raises(ValueError, match=f"request 'a' drew {said} where 7, 8 were proposed"):
        table.finish_step({"a": drawn})


@pytest.mark.parametrize(("start", "count"), [(3, 2), (3, 4), (2, 3)])
def test_proposals_that_do_not_stand_behind_the_known_tokens(table: RequestTable, start: int, count: int) -> None:
    with pytest.raises(ValueError, match="has 2 proposals, which stand behind its 4 known tokens, and is to compute"):
        begin(table, running(start, 7, 8), count)


def test_a_stage_that_draws_nothing_learns_what_was_drawn(table: RequestTable) -> None:
    row = table.get("a")
    assert row is not None
    begin(table, running(3, 7, 8), 3)
    table.finish_step({})
    table.learn(row, [7, 99])
    assert begin(table, running(5), 1) == [99]
    table.finish_step({})
    table.begin_step(SchedulerOutput(step=3, finished=("a",)))
    table.learn(row, [1])  # it has ended meanwhile
    assert row.token_ids == [10, 11, 12, 50, 7, 99]

"""What a schedule says of blocks and of computed tokens is held against what was said before. A lie is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from enginebay.messages import NewRequest, ResumedRequest, RunningRequest, SamplingParams, SchedulerOutput
from enginebay.worker import ContradictorySchedule, RequestTable, ScheduledRow

SIZE = 4
FULL = [None]
WINDOW = [4]
Blocks = Sequence[Sequence[int]]


def new(name: str, count: int, blocks: Blocks, computed: int = 0) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=tuple(range(count)),
        num_prompt_tokens=count,
        params=SamplingParams(),
        seed=0,
        block_ids=tuple(map(tuple, blocks)),
        num_computed_tokens=computed,
    )


def running(name: str, start: int, blocks: Blocks = (), **more: Any) -> RunningRequest:
    told = tuple(map(tuple, blocks))
    return RunningRequest(request_id=name, num_computed_tokens=start, new_block_ids=told, **more)


class Told:
    """A table that is told steps, and draws token 9 for each row that comes to its end."""

    def __init__(self, windows: Sequence[int | None] | None) -> None:
        self.table = RequestTable()
        groups = 1 if windows is None else len(windows)
        self.table.limit_blocks(32, [SIZE] * groups, windows)
        self.steps = 0

    def begin(self, *told: NewRequest | RunningRequest | ResumedRequest, **more: Any) -> list[ScheduledRow]:
        """Each with one token, unless ``counts`` says more."""
        counts = dict.fromkeys((one.request_id for one in told), 1) | more.pop("counts", {})
        self.steps += 1
        return self.table.begin_step(
            SchedulerOutput(
                step=self.steps - 1,
                new=tuple(one for one in told if isinstance(one, NewRequest)),
                resumed=tuple(one for one in told if isinstance(one, ResumedRequest)),
                running=tuple(one for one in told if isinstance(one, RunningRequest)),
                num_scheduled_tokens=counts,
                **more,
            )
        )

    def step(self, *told: NewRequest | RunningRequest | ResumedRequest, **more: Any) -> None:
        rows = self.begin(*told, **more)
        self.table.finish_step({one.row.request_id: (9,) for one in rows if one.samples})

    def refused(self, message: str, *told: NewRequest | RunningRequest | ResumedRequest, **more: Any) -> None:
        with pytest.raises(ContradictorySchedule, match=message):
            self.begin(*told, **more)


EACH = pytest.mark.parametrize("windows", [FULL, WINDOW, None], ids=["full", "window", "not told"])


@EACH
def test_a_request_goes_on_where_it_stands(windows: Sequence[int | None] | None) -> None:
    told = Told(windows)
    told.step(new("a", 10, [[1, 2, 3]]), counts={"a": 4})
    told.refused("to compute tokens from 6 on, and 4 are computed", running("a", 6), counts={"a": 2})


@EACH
def test_what_was_found_in_the_cache_is_not_written_again(windows: Sequence[int | None] | None) -> None:
    told = Told(windows)
    told.step(new("a", 10, [[1, 2, 3]], computed=4), counts={"a": 6})
    told.refused("from 3 on, and 10 are computed, of which it found 4", running("a", 3), counts={"a": 7})
    told = Told(windows)
    told.step(new("a", 10, [[1, 2, 3]], computed=4), counts={"a": 6})
    told.step(running("a", 9), counts={"a": 2})  # as when no token came of a step


@pytest.mark.parametrize("drawn", [(), (9,), (7, 9), (7, 8, 9)])
def test_of_proposals_what_held_may_be_known_later(drawn: tuple[int, ...]) -> None:
    told = Told(FULL)
    told.step(new("a", 4, [[1, 2, 3]]), counts={"a": 4})
    told.begin(running("a", 4, draft_token_ids=(7, 8)), counts={"a": 3})
    told.table.finish_step({})  # a stage that draws nothing
    row = told.table.get("a")
    assert row is not None
    told.table.learn(row, drawn or (9,))
    told.step(running("a", 4 + len(drawn or (9,))))


@EACH
def test_a_request_stands_once_in_a_step(windows: Sequence[int | None] | None) -> None:
    told = Told(windows)
    told.step(new("a", 3, [[1]]), counts={"a": 3})
    told.refused("request 'a' stands twice in the step's lists", running("a", 3), running("a", 3))
    told.refused("request 'b' stands twice", new("b", 3, [[2]]), running("b", 0))


@EACH
def test_tokens_that_nobody_drew(windows: Sequence[int | None] | None) -> None:
    told = Told(windows)
    told.step(new("a", 2, [[1]]), counts={"a": 2})
    told.refused("is told of tokens, and it has drawn all", running("a", 2, new_token_ids=(5,)), counts={"a": 2})


SHARED: dict[str, Callable[[Told], None]] = {
    "of two new ones": lambda told: told.refused(
        "'b' is to write to block 1, which", new("a", 3, [[1]]), new("b", 3, [[1]]), counts={"a": 3, "b": 3}
    ),
    "one's own, at once": lambda told: told.refused("'a' is to write to block 1, which", new("a", 8, [[1, 1]])),
    "that another has yet to fill": lambda told: (
        told.step(new("a", 3, [[1]]), counts={"a": 3}),
        told.refused("'b' is to write to block 1, which", new("b", 3, [[1]])),
    )[-1],
    "one's own, later": lambda told: (
        told.step(new("a", 2, [[1]]), counts={"a": 2}),
        told.refused("'a' is to write to block 1, which", running("a", 2, [[1]])),
    )[-1],
    "of one that was resumed": lambda told: (
        told.step(new("a", 2, [[1]]), counts={"a": 2}),
        told.step(preempted=("a",)),
        told.step(ResumedRequest(request_id="a", token_ids=(0, 1, 9), block_ids=((5,),), num_computed_tokens=0)),
        told.refused("'b' is to write to block 5, which", new("b", 3, [[5]])),
    )[-1],
}


@EACH
@pytest.mark.parametrize("lie", SHARED.values(), ids=SHARED)
def test_a_block_that_two_would_write(windows: Sequence[int | None] | None, lie: Callable[[Told], None]) -> None:
    lie(Told(windows))


def test_a_block_that_somebody_reads_is_written_by_nobody() -> None:
    told = Told(FULL)
    told.step(new("a", 8, [[1, 2]]), counts={"a": 8})
    told.step(new("b", 8, [[1, 3]], computed=4), counts={"b": 4}, finished=("a",))
    told.step(new("c", 4, [[2]]))  # a's, which has ended
    told.refused("'d' is to write to block 1, which it or another request holds", new("d", 4, [[1]]))
    told.refused("'e' is given one block for several places", new("e", 12, [[1, 1, 6]], computed=8))


@EACH
def test_who_gave_way_holds_nothing(windows: Sequence[int | None] | None) -> None:
    told = Told(windows)
    told.step(new("a", 3, [[1]]), counts={"a": 3})
    told.step(new("b", 3, [[1]]), preempted=("a",), counts={"b": 3})


def test_in_a_window_a_block_has_a_new_owner_without_a_word() -> None:
    told = Told(WINDOW)
    told.step(new("a", 12, [[1, 2, 3]]), counts={"a": 8})
    told.refused("'b' is to write to block 2, which request 'a' has", new("b", 4, [[2]]))
    told.step(new("b", 4, [[1]]), counts={"b": 4})  # a sees it no more
    told.step(running("a", 8), counts={"a": 4})
    told.step(running("a", 12, [[2]]))  # and so its own comes back to it
    told.refused("'b' is to write to block 2, which request 'a' has", running("b", 4, [[2]]))


def test_the_block_that_is_none_is_read_by_many_and_written_by_one() -> None:
    told = Told([None, 4])
    told.step(new("a", 12, [[1, 2, 3], [0, 0, 5]], computed=8), counts={"a": 4})
    told.step(new("b", 12, [[1, 2, 6], [0, 0, 7]], computed=8), counts={"b": 4})
    told.refused("'c' is to write to block 0, which request 'c' has", new("c", 8, [[8, 9], [0, 0]]))


@EACH
def test_a_new_generation_begins_with_all_blocks(windows: Sequence[int | None] | None) -> None:
    told = Told(windows)
    told.step(new("a", 8, [[1, 2]]), counts={"a": 4})
    told.step(new("a", 8, [[2, 1]]), generation=1, counts={"a": 7})
    told.refused("'b' is to write to block 1", new("b", 8, [[3, 1]]), generation=1)


def test_a_cache_that_is_made_anew_is_empty() -> None:
    told = Told(FULL)
    told.step(new("a", 2, [[1]]), counts={"a": 2})
    told.table.limit_blocks(32, [SIZE], FULL)
    told.step(new("b", 2, [[1]]), preempted=("a",), counts={"b": 2})
    told.step(ResumedRequest(request_id="a", token_ids=(0, 1, 9), block_ids=((2,),), num_computed_tokens=0))


def test_one_that_failed_alone_stands_in_later_steps_and_harms_nobody() -> None:
    told = Told(FULL)
    told.begin(new("a", 2, [[1]]), new("b", 2, [[2]]), counts={"a": 2, "b": 2})
    told.table.finish_step({"b": (9,)}, {"a": "logits are NaN"})
    for start in (2, 3):
        rows = told.begin(running("a", start), running("b", start))
        assert [one.samples for one in rows] == [True, True]
        output = told.table.finish_step({"a": (8,), "b": (9,)})
        assert output.faults == {"a": "logits are NaN"}
        assert output.sampled_token_ids == ((), (9,))
    told.begin(running("b", 4, [[3]]), new("a", 2, [[1]]), finished=("a",), counts={"a": 2})
    output = told.table.finish_step({"a": (8,), "b": (9,)})
    assert (output.faults, output.sampled_token_ids) == ({}, ((9,), (8,)))


def test_a_stage_learns_that_one_failed() -> None:
    told = Told(FULL)
    told.begin(new("a", 2, [[1]]), counts={"a": 2})
    told.table.finish_step({})
    row = told.table.get("a")
    assert row is not None
    told.table.learn(row, ())
    (one,) = told.begin(running("a", 2))
    assert one.samples
    assert told.table.finish_step({}).faults == {"a": "its logits are at fault"}


def test_a_step_that_drew_nothing_and_was_made_good_is_forgotten() -> None:
    """A later lie is the scheduler's all the same, and no worker's fault."""
    told = Told(FULL)
    told.begin(new("a", 2, [[1, 2]]), counts={"a": 2})
    told.table.finish_step({})
    told.step(running("a", 1))
    told.refused("is to compute 3 tokens from 2 on, and 3 tokens are known", running("a", 2), counts={"a": 3})


def test_proposals_of_an_earlier_step_say_nothing_of_a_block() -> None:
    """On a stage that draws nothing and is told what was drawn: no proposal held, and the block is not full."""
    told = Told(None)
    row_of = told.table.get
    told.begin(new("a", 1, [[1]]))
    told.table.finish_step({})
    for step in (running("a", 1, draft_token_ids=(7,)), running("a", 2)):
        row = row_of("a")
        assert row is not None
        told.table.learn(row, (9,))
        told.begin(step, counts={"a": 1 + len(step.draft_token_ids)})
        told.table.finish_step({})
    told.refused("is to write to block 1, which request 'a' has", new("b", 1, [[1]]))

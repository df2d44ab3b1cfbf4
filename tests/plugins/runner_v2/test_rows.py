"""The inputs of a step, gathered from fixed rows: equal to what a plain reading of the table gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import NewRequest, RunningRequest, SamplingParams, SchedulerOutput
from enginebay.worker.table import RequestTable, Row, ScheduledRow
from enginebay_runner_v2.rows import Rows, StepInputs

SIZE = 4


def row(name: str, tokens: int, computed: int, groups: int, first_block: int) -> Row:
    blocks = -(-(tokens + 8) // SIZE)
    return Row(
        request_id=name,
        token_ids=[100 * first_block + index for index in range(tokens)],
        num_prompt_tokens=tokens,
        params=SamplingParams(),
        seed=0,
        choice=0,
        block_ids=[[first_block + group * 1000 + index for index in range(blocks)] for group in range(groups)],
        num_computed_tokens=computed,
    )


def check(inputs: StepInputs, scheduled: list[ScheduledRow], groups: int) -> None:
    token = 0
    wanted = []
    for number, part in enumerate(scheduled):
        assert inputs.query_starts[number] == token
        assert inputs.context_lens[number] == part.row.num_computed_tokens + part.num_tokens
        for offset, token_id in enumerate(part.token_ids):
            position = part.row.num_computed_tokens + offset
            assert inputs.input_ids[token] == token_id
            assert inputs.positions[token] == position
            for group in range(groups):
                block = part.row.block_ids[group][position // SIZE]
                assert inputs.slots[group][token] == block * SIZE + position % SIZE
                assert inputs.block_tables[group][number][position // SIZE] == block
            token += 1
        if part.samples:
            wanted += range(token - 1 - len(part.draft_token_ids), token)
        seen = -(-(part.row.num_computed_tokens + part.num_tokens) // SIZE)
        for group in range(groups):
            assert inputs.block_tables[group][number][:seen].tolist() == part.row.block_ids[group][:seen]
    assert inputs.query_starts[-1] == token == len(inputs.input_ids)
    assert inputs.rows.tolist() == wanted


@settings(deadline=None, max_examples=60)
@given(data=st.data(), groups=st.integers(1, 3))
def test_inputs_are_those_of_the_table(data: st.DataObject, groups: int) -> None:
    rows = Rows(groups, SIZE, rows=2, blocks=2)
    live: dict[str, Row] = {}
    for step in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 3))):
            name = f"r{step}.{len(live)}"
            tokens = data.draw(st.integers(1, 30))
            live[name] = row(name, tokens, data.draw(st.integers(0, tokens - 1)), groups, 10 * (len(live) + step * 40))
        for name in data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else []:
            if data.draw(st.booleans()):
                rows.forget([name])
                del live[name]
            else:  # preempted and resumed elsewhere
                live[name].block_ids = [[block + 7 for block in blocks] for blocks in live[name].block_ids]
        scheduled = []
        for name in data.draw(st.permutations(sorted(live))):
            one = live[name]
            left = len(one.token_ids) - one.num_computed_tokens
            count = data.draw(st.integers(1, left))
            drafts = tuple(range(data.draw(st.integers(0, 3)))) if count == left else ()
            scheduled.append(ScheduledRow(one, count + len(drafts), count == left, drafts))
        check(rows.inputs(scheduled), scheduled, groups)
        for part in scheduled:
            one = part.row
            one.num_computed_tokens += part.num_tokens - len(part.draft_token_ids)
            if part.samples:
                one.token_ids.append(5)
                for blocks in one.block_ids:
                    if len(blocks) * SIZE < len(one.token_ids) + 8:
                        blocks.append(blocks[-1] + 1)
    assert len(rows) <= len(live)


def test_a_step_of_nothing_has_empty_inputs() -> None:
    inputs = Rows(2, SIZE).inputs([])
    assert [array.shape for array in inputs.of_body()] == [(0,), (0,), (0,), (0, 0), (0,), (0, 0), (1,), (0,)]
    assert inputs.rows.shape == (0,)


def test_forgotten_rows_are_used_again() -> None:
    rows = Rows(1, SIZE, rows=1)
    for number in range(50):
        part = ScheduledRow(row(f"r{number}", 3, 0, 1, number), 3, True)
        check(rows.inputs([part]), [part], 1)
        rows.forget([f"r{number}", "never seen"])
    assert len(rows) == 0
    part = ScheduledRow(row("last", 3, 0, 1, 1), 3, True)
    rows.inputs([part])
    rows.clear()
    assert len(rows) == 0
    assert np.array_equal(rows.inputs([part]).block_tables[0], [[1]])


def test_a_drawn_token_is_the_next_steps_input_with_nobody_telling() -> None:
    """Two steps in flight: the second was scheduled before the first one's tokens were known, and names none."""
    table, rows, names = RequestTable(), Rows(1, SIZE), ("a", "b")
    new = tuple(
        NewRequest(
            request_id=name,
            token_ids=(1, 2, 3),
            num_prompt_tokens=3,
            params=SamplingParams(),
            seed=0,
            block_ids=((number,),),
            num_computed_tokens=0,
        )
        for number, name in enumerate(names)
    )
    first = table.begin_step(SchedulerOutput(step=0, new=new, num_scheduled_tokens=dict.fromkeys(names, 3)))
    assert rows.inputs(first).input_ids.tolist() == [1, 2, 3, 1, 2, 3]
    table.finish_step({"a": [70], "b": [80]})
    running = tuple(RunningRequest(request_id=name, num_computed_tokens=3) for name in names)
    second = table.begin_step(SchedulerOutput(step=1, running=running, num_scheduled_tokens=dict.fromkeys(names, 1)))
    inputs = rows.inputs(second)
    assert inputs.input_ids.tolist() == [70, 80]
    assert inputs.positions.tolist() == [3, 3]
    assert inputs.slots[0].tolist() == [3, SIZE + 3]

"""What a victim gives back to the step that is being drawn up."""

from __future__ import annotations

from enginebay.interfaces import BatchConstraints
from enginebay.scheduling._bounds import Bounds
from enginebay.scheduling._draft import Draft
from enginebay.scheduling._record import Record
from enginebay.testing import make_limits, make_request


def test_a_victim_gives_back_tokens_context_and_its_place_among_the_prompts() -> None:  # S10
    constraints = BatchConstraints(max_batch_context_tokens=100, max_prefills_per_step=2)
    draft = Draft(Bounds.join(make_limits(max_num_batched_tokens=50), constraints, 10))
    record = Record(make_request(0, 40), 0, 256)
    record.num_computed, record.prefill_until = 16, 40
    draft.run(record, 8)
    assert (draft.tokens_left, draft.context_left, draft.prefills_left, draft.empty) == (42, 76, 1, False)
    draft.give_back(record)
    draft.give_back(record)  # a victim that was not in the step gives nothing back
    assert (draft.tokens_left, draft.context_left, draft.prefills_left, draft.empty) == (50, 100, 2, True)
    output, in_flight = draft.close(0, [], [])
    assert (output.num_scheduled_tokens, in_flight.records) == ({}, [])

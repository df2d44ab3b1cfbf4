"""What a step costs, counted in calls and not in time: it grows with what runs and changes, not with what waits."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from types import FrameType

import pytest

from enginebay.interfaces import RequestView
from enginebay.messages import Committed, FinishReason
from enginebay.testing import make_limits, make_request
from support.loop import Arrival, loop_of


class Window(Arrival):
    window = 8


class Newest(Arrival):
    """Whoever starts overtakes all that wait."""

    def key(self, request: RequestView) -> tuple[int]:
        return (-request.arrival_number,)


class Urgent(Arrival):
    may_overtake_preempted = True
    preempts_running = True

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return None  # nobody is more urgent than who runs


def calls(policy: type[Arrival], *, running: int, waiting: int, steps: int, max_tokens: int = 1000) -> int:
    """Calls of functions, Python's and C's, in so many steps after the first two."""
    limits = make_limits(max_num_seqs=running, max_num_batched_tokens=4 * running, max_model_len=4096)
    scheduler = loop_of(policy, num_blocks=10_000, limits=limits).scheduler
    for number in range(running + waiting):
        scheduler.add_request(make_request(number, 4, max_tokens=max_tokens))
    output: dict[str, int] = {}
    count = 0

    def step() -> None:
        scheduled = scheduler.schedule()
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for request_id in scheduled.num_scheduled_tokens:
            output[request_id] = output.get(request_id, 0) + 1
            tokens[request_id] = (7,)
            if output[request_id] == max_tokens:
                finished[request_id] = FinishReason.LENGTH
        scheduler.update_from_output(scheduled, Committed(token_ids=tokens, finished=finished))

    def see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    step()
    step()
    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what is collected calls what it is told to
    sys.setprofile(see)
    try:
        for _ in range(steps):
            step()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@pytest.mark.parametrize("policy", [Arrival, Window, Newest, Urgent])
def test_a_step_costs_the_same_however_many_wait(policy: type[Arrival]) -> None:
    few, many = (calls(policy, running=8, waiting=waiting, steps=20) for waiting in (20, 4000))
    assert few == many


@pytest.mark.parametrize("policy", [Arrival, Window, Newest, Urgent])
def test_so_does_a_step_in_which_requests_end_and_others_start(policy: type[Arrival]) -> None:
    few, many = (calls(policy, running=8, waiting=waiting, steps=20, max_tokens=4) for waiting in (200, 4000))
    assert few == pytest.approx(many, rel=0.02)  # what has left the line is cleared away now and then


@pytest.mark.parametrize("policy", [Arrival, Urgent])
def test_a_running_request_costs_a_few_calls_a_step(policy: type[Arrival]) -> None:
    """Of a request that only decodes: its row in the message, its token, and every fourth time the name of a block."""
    few, more = (calls(policy, running=running, waiting=100, steps=20) for running in (16, 116))
    assert (more - few) / (100 * 20) < 16

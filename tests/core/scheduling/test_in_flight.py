"""Steps scheduled before the last one is acknowledged: placeholders, held blocks, nothing drawn twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.interfaces import NoOptions, RequestView
from enginebay.kvcache import KVSequence
from enginebay.messages import Committed, FinishReason, SchedulerOutput
from enginebay.testing import CoreLoop, make_limits, make_request, random_load
from support.loop import Arrival, loop_of, plugin_of, scheduled


def test_exactly_max_tokens_are_computed() -> None:
    loop = loop_of(depth=2)
    loop.add(make_request(0, 8, max_tokens=3))
    tokens = [scheduled(loop.step()).get("r0", 0) for _ in range(5)]
    assert tokens == [8, 1, 1, 0, 0]


def test_blocks_of_an_aborted_request_are_held_until_its_step_is_acknowledged() -> None:
    loop = loop_of(depth=2, num_blocks=4)
    loop.add(make_request(0, 8))
    loop.step()
    loop.abort("r0")
    assert loop.cache.num_free_blocks == 2
    loop.step()
    assert loop.cache.num_free_blocks == 4
    loop.run()


def test_an_id_can_be_used_again_while_the_old_step_is_in_flight() -> None:
    loop = loop_of(depth=2)
    scheduler = loop.scheduler
    scheduler.add_request(make_request(0, 8, request_id="same"))
    first = scheduler.schedule()
    scheduler.finish_requests(["same"], FinishReason.ABORT)
    scheduler.add_request(make_request(1, 5, request_id="same"))
    second = scheduler.schedule()
    assert (second.finished, [len(new.token_ids) for new in second.new]) == (("same",), [5])
    scheduler.update_from_output(first, Committed())
    scheduler.update_from_output(second, Committed(token_ids={"same": (7,)}, finished={"same": FinishReason.STOP}))
    assert loop.cache.num_free_blocks == loop.cache.num_blocks


def test_policies_never_see_a_placeholder() -> None:
    seen: list[tuple[int, int]] = []

    class Look(Arrival):
        def on_scheduled(self, request: RequestView, num_tokens: int) -> None:
            seen.append((request.num_tokens, request.num_output_tokens))

    loop = loop_of(Look, depth=2)
    loop.add(make_request(0, 8, max_tokens=4))
    loop.run()
    assert seen == [(8, 0), (8, 0), (9, 1), (10, 2)]


def test_nothing_is_found_before_its_step_is_acknowledged() -> None:
    loop = loop_of(depth=2)
    prompt = tuple(range(12))
    loop.add(make_request(0, prompt, max_tokens=4))
    loop.step()
    loop.add(make_request(1, prompt, max_tokens=4))
    assert [new.num_computed_tokens for new in loop.step().new] == [0]
    loop.run()


def test_no_chunk_is_found_before_its_own_step_is_acknowledged() -> None:
    """Two chunks in flight, one acknowledged: the blocks of the first can be found, those of the second cannot."""
    loop = loop_of(depth=2, limits=make_limits(max_num_batched_tokens=8))
    prompt, scheduler = tuple(range(24)), loop.scheduler
    request = make_request(0, prompt)
    scheduler.add_request(request)
    found = []
    first, second = scheduler.schedule(), scheduler.schedule()
    for step in (None, first, second):
        if step is not None:
            scheduler.update_from_output(step, Committed())
        found.append(loop.cache.cached_prefix_tokens(request))
    assert found == [0, 8, 16]


def watch_publishing(loop: CoreLoop) -> list[str]:
    """Every block that is published although the step that computed it has not been acknowledged, in words."""
    early: list[str] = []
    acknowledged: dict[str, int] = {}
    ends: dict[int, dict[str, int]] = {}
    schedule, update, publish = loop.scheduler.schedule, loop.scheduler.update_from_output, loop.cache.publish

    def schedule_() -> SchedulerOutput:
        output = schedule()
        counts = output.num_scheduled_tokens
        begun = {one.request_id: one.num_computed_tokens for one in (*output.new, *output.resumed)}  # type: ignore[attr-defined]  # both have them
        acknowledged.update(begun)
        starts = begun | {one.request_id: one.num_computed_tokens for one in output.running}
        ends[output.step] = {request_id: starts[request_id] + count for request_id, count in counts.items()}
        return output

    def update_(scheduler_output: SchedulerOutput, committed: Committed) -> None:
        acknowledged.update(ends.pop(scheduler_output.step))
        update(scheduler_output, committed)

    def publish_(sequence: KVSequence, num_computed_tokens: int) -> None:
        if num_computed_tokens > acknowledged[sequence.request_id]:
            early.append(f"{sequence.request_id}: {num_computed_tokens} of {acknowledged[sequence.request_id]}")
        publish(sequence, num_computed_tokens)

    loop.scheduler.schedule = schedule_  # type: ignore[method-assign]  # the test looks on
    loop.scheduler.update_from_output = update_  # type: ignore[method-assign]  # the test looks on
    loop.cache.publish = publish_  # type: ignore[method-assign]  # the test looks on
    return early


@pytest.mark.parametrize("depth", [1, 2, 3])
@given(seed=st.integers(0, 2**32))
def test_nothing_is_published_beyond_what_is_acknowledged(depth: int, seed: int) -> None:
    load = random_load(seed, num_requests=12)
    loop = CoreLoop(
        plugin_of(Arrival),
        NoOptions(),
        limits=load.limits,
        constraints=load.constraints,
        cache=load.cache(),
        depth=depth,
    )
    early = watch_publishing(loop)
    loop.run_load(load)
    assert early == []

"""Steps scheduled before the last one is acknowledged: placeholders, held blocks, nothing drawn twice."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.interfaces import BatchConstraints, NoOptions, RequestView
from enginebay.kvcache import GroupSpec, KVCacheManager, KVSequence
from enginebay.messages import Committed, FinishReason, SamplingParams, SchedulerOutput, StructuredOutput
from enginebay.scheduling import make_scheduler
from enginebay.testing import CoreLoop, make_limits, make_request, random_load
from support.loop import Arrival, loop_of, plugin_of, scheduled
from support.schedule_watch import watch


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


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_no_token_is_computed_that_nobody_asked_for(depth: int, max_tokens: int) -> None:  # S13
    loop = loop_of(depth=depth)
    loop.add(*(make_request(number, 8, max_tokens=max_tokens) for number in range(3)))
    computed = dict.fromkeys(("r0", "r1", "r2"), 0)
    while loop.scheduler.has_requests():
        for request_id, count in scheduled(loop.step()).items():
            computed[request_id] += count
    assert set(computed.values()) == {8 + max_tokens - 1}  # the last token is drawn, and never computed


@pytest.mark.parametrize("depth", [2, 3])
def test_the_policy_s_victim_gives_way_though_a_step_of_it_is_in_flight(depth: int) -> None:  # S9, S13, S14
    """All that run are in flight whenever a step is drawn up: the last one gives way all the same, not whom it hits."""
    loop = loop_of(num_blocks=6, prefix_caching=False, depth=depth)
    watch(loop)
    loop.add(*(make_request(number, 7, max_tokens=12) for number in range(3)))
    preempted: list[str] = []
    while "r0" not in loop.finished:
        preempted += loop.step().preempted
    assert preempted[:2] == ["r2", "r1"]
    assert "r0" not in preempted
    loop.run()


def test_when_nobody_gives_way_and_steps_are_in_flight_the_scheduler_waits() -> None:
    class Nobody(Arrival):
        def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
            return None

    loop = loop_of(Nobody, num_blocks=4, prefix_caching=False, depth=2)
    loop.add(make_request(0, 7, max_tokens=8), make_request(1, 7, max_tokens=8))
    scheduler = loop.scheduler
    steps = [scheduler.schedule() for _ in range(4)]
    assert [len(step.num_scheduled_tokens) for step in steps] == [2, 2, 0, 0]
    assert scheduler.make_stats().preemptions == 0  # what is in flight may end somebody
    for step in steps[:2]:
        scheduler.update_from_output(step, Committed(token_ids={"r0": (7,), "r1": (7,)}))
    assert scheduled(scheduler.schedule()) == {"r0": 1}  # now somebody must
    assert scheduler.make_stats().preemptions == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_abort_with_tokens_in_flight_loses_and_repeats_nothing(depth: int) -> None:  # S13, S14
    loop = loop_of(depth=depth, num_blocks=12, limits=make_limits(max_num_seqs=2, max_num_batched_tokens=8))
    books = watch(loop)
    for number in range(12):
        loop.add(make_request(number, 7, max_tokens=6))
        loop.step()
        loop.abort(f"r{number - 2}")
        loop.step()
    loop.run()
    books.quiet()
    assert {loop.finished[f"r{number}"] for number in range(12)} == {FinishReason.ABORT, FinishReason.LENGTH}


OPTIONS = {
    "whole prompts": {"chunked_prefill": False},
    "chunks": {"max_num_batched_tokens": 12},
    "long prefills": {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 6},
    "watermark": {"watermark": 0.25},
    "reserved prompts": {"max_num_batched_tokens": 12, "reserve_whole_prompt": True},
    "no eviction": {"no_evict": True},
}


@pytest.mark.parametrize(("depth", "num_stages"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 3)])
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_holds_with_steps_in_flight(name: str, depth: int, num_stages: int) -> None:
    """The kit checks the bounds of each step; here it is that all of it ends, and nobody gives way where none may."""
    limits = make_limits(**OPTIONS[name])  # type: ignore[arg-type]  # a table
    loop = loop_of(num_blocks=14, depth=depth, limits=limits, num_stages=num_stages)
    books = watch(loop)
    loop.add(*(make_request(number, 5 + 7 * (number % 3), max_tokens=6 + number % 9) for number in range(12)))
    loop.run(max_steps=600)
    books.quiet()
    assert name != "no eviction" or loop.preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_who_draws_under_a_grammar_is_listed(depth: int) -> None:
    shape = SamplingParams(max_tokens=3, ignore_eos=True, structured=StructuredOutput(regex="a+"))
    loop = loop_of(depth=depth, limits=make_limits(max_num_batched_tokens=8))
    free, bound = make_request(0, 3, max_tokens=4), msgspec.structs.replace(make_request(1, 10), params=shape)
    loop.add(free, bound)
    assert [loop.step().constrained for _ in range(4)] == [(), ("r1",), ("r1",), ("r1",)]
    loop.run()


def test_blocks_that_fell_out_of_a_window_come_back_when_their_step_is_acknowledged() -> None:
    group = GroupSpec(4, "sliding_window", 8)
    cache = KVCacheManager(num_blocks=64, block_size=4, groups=(group,), max_step_tokens=8)
    scheduler = make_scheduler(
        plugin_of(Arrival),
        NoOptions(),
        limits=make_limits(max_num_batched_tokens=8),
        constraints=BatchConstraints(),
        kv_cache=cache,
        now=lambda: 0.0,
    )
    scheduler.add_request(make_request(0, 40, max_tokens=3))
    held = []
    first = scheduler.schedule()
    for _ in range(4):  # one step is always in flight
        second = scheduler.schedule()
        scheduler.update_from_output(first, Committed())
        held.append(cache.num_blocks - cache.num_free_blocks)
        first = second
    assert max(held) <= 5  # a window of 2 blocks and one begun, and the 2 of the step in flight: never all 10
    assert min(held) >= 4
    scheduler.update_from_output(first, Committed(token_ids={"r0": (7,)}, finished={"r0": FinishReason.STOP}))
    assert cache.num_free_blocks == cache.num_blocks

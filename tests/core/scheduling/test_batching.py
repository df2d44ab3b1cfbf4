"""Who runs in a step: admission, budgets, chunks."""

from __future__ import annotations

import pytest

from enginebay.errors import CapabilityError
from enginebay.interfaces import BatchConstraints
from enginebay.messages import Committed, FinishReason
from enginebay.testing import make_limits, make_request
from support.loop import loop_of, scheduled


def test_ten_added_are_ten_waiting_and_an_abort_takes_one_out_at_once() -> None:  # S1
    loop = loop_of()
    loop.add(*(make_request(number) for number in range(10)))
    stats = loop.scheduler.make_stats()
    assert (stats.num_waiting, stats.num_running) == (10, 0)
    loop.abort("r3")
    assert loop.scheduler.make_stats().num_waiting == 9
    assert loop.step().finished == ()  # the runner never heard of r3
    held = loop.cache.num_blocks - loop.cache.num_free_blocks
    assert held == 9 * 2
    loop.abort("r5")
    stats = loop.scheduler.make_stats()
    assert (stats.num_running, loop.cache.num_blocks - loop.cache.num_free_blocks) == (8, 16)
    assert loop.step().finished == ("r5",)
    loop.run()


def test_max_num_seqs_caps_admission_in_order_of_arrival() -> None:  # S2
    loop = loop_of(limits=make_limits(max_num_seqs=3, max_num_batched_tokens=1000))
    loop.add(*(make_request(number) for number in range(10)))
    assert list(scheduled(loop.step())) == ["r0", "r1", "r2"]
    assert loop.scheduler.make_stats().num_waiting == 7


def test_whole_prompts_that_fit_run_whole_and_in_order() -> None:  # S3
    loop = loop_of()
    loop.add(*(make_request(number, 5 + number) for number in range(4)))
    assert scheduled(loop.step()) == {"r0": 5, "r1": 6, "r2": 7, "r3": 8}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 1, "r2": 1, "r3": 1}


def test_the_last_prompt_is_chunked_and_decode_tokens_go_first() -> None:  # S4
    loop = loop_of(limits=make_limits(max_num_batched_tokens=10))
    loop.add(make_request(0, 4, max_tokens=9), make_request(1, 20, max_tokens=2))
    assert scheduled(loop.step()) == {"r0": 4, "r1": 6}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 9}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 5}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 1}


def test_decode_tokens_go_before_an_older_request_s_chunk() -> None:  # S4
    limits = make_limits(max_num_batched_tokens=10, long_prefill_token_threshold=4)
    loop = loop_of(limits=limits)
    loop.add(make_request(0, 30), make_request(1, 3, max_tokens=9))
    assert scheduled(loop.step()) == {"r0": 4, "r1": 3}
    assert scheduled(loop.step()) == {"r1": 1, "r0": 9}


def test_without_chunks_a_head_that_does_not_fit_waits_and_nobody_overtakes() -> None:  # S5
    loop = loop_of(limits=make_limits(max_num_batched_tokens=10, chunked_prefill=False))
    loop.add(make_request(0, 6, max_tokens=2), make_request(1, 8, max_tokens=2), make_request(2, 1, max_tokens=2))
    assert scheduled(loop.step()) == {"r0": 6}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 8, "r2": 1}
    loop.run()


def test_the_cap_on_long_prompts_counts_only_while_others_wait() -> None:  # S6
    limits = make_limits(max_num_seqs=2, max_num_batched_tokens=20, long_prefill_token_threshold=6)
    loop = loop_of(limits=limits)
    loop.add(make_request(0, 40, max_tokens=1))
    assert scheduled(loop.step()) == {"r0": 20}
    loop.add(make_request(1, 30, max_tokens=1), make_request(2, 30, max_tokens=1))
    assert scheduled(loop.step()) == {"r0": 6, "r1": 6}  # r2 waits
    loop.abort("r2")
    assert scheduled(loop.step()) == {"r0": 14, "r1": 6}


def test_a_cached_prefix_is_not_computed_again() -> None:  # K1
    loop = loop_of()
    prompt = tuple(range(12))
    loop.add(make_request(0, prompt, max_tokens=1))
    loop.run()
    loop.add(make_request(1, prompt, max_tokens=1), make_request(2, prompt, max_tokens=1, salt="other"))
    output = loop.step()
    assert scheduled(output) == {"r1": 4, "r2": 12}
    assert [new.num_computed_tokens for new in output.new] == [8, 0]
    stats = loop.scheduler.make_stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (36, 8)
    loop.run()


def test_the_watermark_is_left_free_by_admission() -> None:
    loop = loop_of(num_blocks=10, limits=make_limits(watermark=0.3))
    loop.add(make_request(0, 16), make_request(1, 16))
    assert scheduled(loop.step()) == {"r0": 16}
    loop.run()


def test_the_watermark_does_not_keep_out_who_comes_alone() -> None:
    loop = loop_of(num_blocks=10, limits=make_limits(watermark=0.9))
    loop.add(make_request(0, 36, max_tokens=2))
    assert scheduled(loop.step()) == {"r0": 36}


def test_a_whole_prompt_can_be_reserved() -> None:
    chunks = {"max_num_batched_tokens": 8}
    loop = loop_of(num_blocks=6, limits=make_limits(**chunks, reserve_whole_prompt=True))
    loop.add(make_request(0, 16, max_tokens=1), make_request(1, 16, max_tokens=1))
    assert [len(new.block_ids[0]) for new in loop.step().new] == [4]
    loop.step()
    assert scheduled(loop.step()) == {"r1": 8}  # only once the blocks of r0 are back
    loop.run()
    assert loop.preemptions == 0


def test_without_eviction_nobody_is_ever_preempted() -> None:
    loop = loop_of(num_blocks=10, limits=make_limits(no_evict=True))
    loop.add(*(make_request(number, 8, max_tokens=13) for number in range(5)))
    assert list(scheduled(loop.step())) == ["r0", "r1"]  # 5 blocks each, for 8 + 12 tokens
    loop.run()
    assert loop.preemptions == 0


def test_without_eviction_the_same_load_would_preempt() -> None:
    loop = loop_of(num_blocks=10)
    loop.add(*(make_request(number, 8, max_tokens=13) for number in range(5)))
    loop.run()
    assert loop.preemptions > 0


def test_chunks_are_multiples_of_what_the_runner_takes() -> None:
    constraints = BatchConstraints(chunk_multiple=8)
    loop = loop_of(limits=make_limits(max_num_batched_tokens=30), constraints=constraints)
    loop.add(make_request(0, 29))
    assert [scheduled(loop.step())["r0"] for _ in range(2)] == [29, 1]
    loop.add(make_request(1, 60))
    assert [scheduled(loop.step())["r1"] for _ in range(3)] == [24, 24, 12]


def test_prompts_and_decode_tokens_are_kept_apart() -> None:
    constraints = BatchConstraints(mixed_prefill_decode=False, max_prefills_per_step=1, max_consecutive_prefill_steps=2)
    loop = loop_of(constraints=constraints)
    loop.add(*(make_request(number, 4, max_tokens=3) for number in range(4)))
    steps = [list(scheduled(loop.step())) for _ in range(6)]
    assert steps == [["r0"], ["r1"], ["r2"], ["r0", "r1", "r2"], ["r3"], ["r0", "r1", "r2", "r3"]]


def test_the_context_of_a_batch_is_bounded() -> None:
    loop = loop_of(constraints=BatchConstraints(max_batch_context_tokens=20))
    loop.add(make_request(0, 8), make_request(1, 8), make_request(2, 8))
    assert scheduled(loop.step()) == {"r0": 8, "r1": 8, "r2": 4}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 1}
    loop.run()


def test_a_chunk_larger_than_any_step_is_refused_at_once() -> None:
    with pytest.raises(CapabilityError) as refused:
        loop_of(limits=make_limits(max_num_batched_tokens=32), constraints=BatchConstraints(chunk_multiple=64))
    assert str(refused.value) == (
        "the runner takes chunks of 64 tokens, and a step holds 32: "
        "set [scheduler] max_num_batched_tokens to 64 or more"
    )


def test_an_empty_step_takes_no_number_and_the_end_is_told_once() -> None:
    loop = loop_of()
    assert loop.step().num_scheduled_tokens == {}
    loop.add(make_request(0, 4, max_tokens=1))
    assert loop.step().step == 0
    assert loop.finished == {"r0": FinishReason.LENGTH}
    assert loop.scheduler.has_requests()
    assert loop.step().finished == ("r0",)
    assert not loop.scheduler.has_requests()
    assert loop.step().finished == ()


def test_batch_order_is_running_then_resumed_then_new() -> None:
    loop = loop_of(limits=make_limits(max_num_seqs=8))
    loop.add(make_request(0, 4), make_request(1, 4))
    loop.step()
    loop.scheduler.preempt_all()
    loop.add(make_request(2, 4))
    output = loop.step()
    assert output.preempted == ("r1", "r0")
    assert [resumed.request_id for resumed in output.resumed] == ["r0", "r1"]
    assert list(scheduled(output)) == ["r0", "r1", "r2"]
    loop.run()


def test_a_step_without_the_token_it_should_have_drawn_is_made_good() -> None:
    """The core may commit nothing for a request, and not end it: its last token is computed again."""
    loop = loop_of()
    loop.add(make_request(0, 8, max_tokens=3))
    output = loop.scheduler.schedule()
    loop.scheduler.update_from_output(output, Committed())
    again = loop.scheduler.schedule()
    assert [(row.num_computed_tokens, scheduled(again)["r0"]) for row in again.running] == [(7, 1)]


def test_a_prompt_that_no_step_drew_a_token_for_is_made_good_after_a_look_that_found_nobody_prefilling() -> None:
    scheduler = loop_of(depth=2).scheduler
    scheduler.add_request(make_request(0, 8, max_tokens=3))
    prompt, behind = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(prompt, Committed())
    scheduler.update_from_output(behind, Committed())
    again = scheduler.schedule()
    assert [(row.num_computed_tokens, scheduled(again)["r0"]) for row in again.running] == [(7, 1)]


def test_what_follows_a_hit_is_published_too() -> None:  # K1
    loop = loop_of()
    beginning, whole = tuple(range(12)), tuple(range(24))
    for number, prompt in enumerate((beginning, whole)):
        loop.add(make_request(number, prompt, max_tokens=1))
        loop.run()
    loop.add(make_request(2, (*whole, 99), max_tokens=1))
    assert scheduled(loop.step()) == {"r2": 1}
    loop.run()

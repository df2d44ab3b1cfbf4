"""The conformance suite of schedulers: subclass it, name your scheduler, and run pytest.

::

    from enginebay.testing import SchedulerSuite

    class TestShortest(SchedulerSuite):
        name = "shortest"                    # the installed name
        options: ClassVar = {"ageing": 0.5}  # as under [scheduler.options]

It drives the scheduler with random loads under random constraints, on a simulated device that computes each token
from what really stands in the KV blocks.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from enginebay.errors import RequestTooLong
from enginebay.interfaces import BatchConstraints
from enginebay.kvcache import KVCacheManager
from enginebay.messages import EngineRequest, SchedulerOutput
from enginebay.scheduling import check_fits
from enginebay.testing._loads import make_limits, make_request, random_load
from enginebay.testing._loop import CoreLoop
from enginebay.testing._scheduler_base import LoadedScheduler
from enginebay.testing._scheduler_groups import GroupTests
from enginebay.testing._scheduler_overlap import OverlapTests
from enginebay.testing._scheduler_policy import PolicyTests
from enginebay.testing._sim import expected_tokens

_FAVOURED = {
    "shorter": {"prompt": 1},
    "longer": {"prompt": 24},
    "more urgent": {"prompt": 8, "priority": -10},
    "less urgent": {"prompt": 8, "priority": 10},
    "other tenant's": {"prompt": 8, "tenant": "other"},
    "earlier due": {"prompt": 8, "deadline": 1.0},
    "already cached": {"prompt": tuple(range(8))},
}
_CONSTRAINTS: dict[str, dict[str, Any]] = {
    "whole prompts": {"chunked_prefill": False},
    "chunks of 8": {"chunk_multiple": 8},
    "prompts apart": {"mixed_prefill_decode": False, "max_prefills_per_step": 1, "max_consecutive_prefill_steps": 1},
    "one prompt a step": {"max_prefills_per_step": 1},
    "two prompt steps in a row": {"mixed_prefill_decode": False, "max_consecutive_prefill_steps": 2},
    "three requests": {"max_num_seqs": 3},
    "context of 100": {"max_batch_context_tokens": 100},
    "steps of 20": {"max_num_batched_tokens": 20},
    "reserved blocks": {"reserved_blocks": 3},
    "no prefix caching": {"prefix_caching": False},
}


class SchedulerSuite(OverlapTests, PolicyTests, GroupTests):
    """What every scheduler must keep, whatever its order."""

    def test_each_request_finishes_once_within_all_bounds(self, loaded: LoadedScheduler) -> None:
        """SHAPE: random loads, constraints, aborts and tiny caches; no bound is passed and no block lost."""
        for seed in range(self.seeds):
            self.loop(loaded, load := random_load(seed)).run_load(load)

    def test_longest_admitted_request_finishes_alone(self, loaded: LoadedScheduler) -> None:
        """CAPACITY: what the core admits can run to its end; one token more is refused."""
        limits = make_limits(max_num_batched_tokens=7)
        loop = self.small(loaded, num_blocks=10, limits=limits)
        longest = make_request(0, 30, max_tokens=11)
        check_fits(30, 11, limits, loop.cache)
        with pytest.raises(RequestTooLong):
            check_fits(30, 12, limits, loop.cache)
        loop.add(longest)
        loop.run(max_steps=500)

    def test_requests_that_fit_only_one_by_one_all_finish(self, loaded: LoadedScheduler) -> None:
        """Ping-pong: four requests that each need most of the cache take bounded work."""
        loop = self.small(loaded, num_blocks=10)
        loop.add(*(make_request(number, 12, max_tokens=24) for number in range(4)))
        loop.run(max_steps=2000)

    def test_probe_changes_nothing(self, loaded: LoadedScheduler) -> None:
        """PROBE: a scheduler between whose steps everything is probed makes the same schedule."""
        prompts = [tuple(range(100, 100 + length)) for length in (3, 9, 9, 20, 31, 20, 9, 40)]
        limits = make_limits(max_num_seqs=2)
        plain, probed = (self.small(loaded, num_blocks=16, limits=limits) for _ in range(2))
        for loop in (plain, probed):
            loop.add(*(make_request(number, prompt, max_tokens=6) for number, prompt in enumerate(prompts)))
        while plain.unfinished:
            before = probed.cache.pool.free_order(), probed.scheduler.make_stats()
            for request in probed.requests.values():
                probed.cache.view().cached_prefix_tokens(_Probed(request))
            assert before == (probed.cache.pool.free_order(), probed.scheduler.make_stats()), "the probe left a trace"
            plain.step()
            probed.step()
        if loaded[0].capabilities.deterministic_order:
            assert plain.schedules == probed.schedules

    @pytest.mark.parametrize("favoured", sorted(_FAVOURED))
    def test_nobody_starves(self, loaded: LoadedScheduler, favoured: str) -> None:
        """STARVE: a request finishes before 10,000 later ones of a kind that may be favoured have all come."""
        loop = self.small(loaded, limits=make_limits(max_num_seqs=16, max_num_batched_tokens=512))
        loop.add(make_request(0, 8, max_tokens=6, tenant="one", deadline=1e9))
        number = 1
        while "r0" not in loop.finished:
            assert number < 10_000, f"r0 still waits after {number} {favoured} requests came after it"
            while number < 10_000 and loop.num_unfinished < 48:
                loop.add(make_request(number, max_tokens=1, **_FAVOURED[favoured]))  # type: ignore[arg-type]  # a table
                number += 1
            loop.step()

    def test_same_inputs_same_schedule(self, loaded: LoadedScheduler) -> None:
        """What declares ``deterministic_order`` makes the same messages twice; any gives the same tokens."""
        for seed in range(5):
            load = random_load(seed)
            first, second = self.loop(loaded, load), self.loop(loaded, load)
            first.run_load(load)
            second.run_load(load)
            if loaded[0].capabilities.deterministic_order:
                assert first.schedules == second.schedules, f"load {seed} was scheduled in two ways"
            whole = [r for r, reason in first.finished.items() if reason == second.finished[r] != "abort"]
            assert [first.output[r] for r in whole] == [second.output[r] for r in whole]

    def test_abort_takes_effect_at_once(self, loaded: LoadedScheduler) -> None:
        """S1: waiting, running, preempted or unknown: an aborted request is gone, and its blocks are free."""
        loop = self.small(loaded)
        loop.add(*(make_request(number, 8, max_tokens=50) for number in range(20)))
        for _ in range(3):
            loop.step()
        loop.abort(*loop.requests, "never heard of")
        assert not loop.unfinished
        for _ in range(3):
            assert not loop.step().num_scheduled_tokens, "something ran on after everything was aborted"
        loop.run()

    def test_a_fresh_scheduler_goes_on_from_the_ledger(self, loaded: LoadedScheduler) -> None:
        """Recovery: requests with committed tokens are computed again and continue with the same tokens."""
        loop = self.small(loaded)
        for number in range(8):
            request = make_request(number, 9, max_tokens=12)
            committed = tuple(expected_tokens(request, 256)[:number])
            loop.add(make_request(number, 9, max_tokens=12, committed=committed))
        loop.run()

    def test_what_a_request_says_of_itself_reaches_the_runner(self, loaded: LoadedScheduler) -> None:
        """The number of the choice is sent along; who wants the prompt's log-probabilities starts at token 0."""
        loop = self.small(loaded)
        prompt = tuple(range(100, 116))
        loop.add(make_request(0, prompt))
        loop.run()
        loop.add(make_request(1, prompt, choice=2), make_request(2, prompt, prompt_logprobs=0))
        loop.run()
        steps = [msgspec.msgpack.decode(step, type=SchedulerOutput) for step in loop.schedules]
        news = {new.request_id: new for step in steps for new in step.new}
        assert news["r1"].choice == 2, "the runner is not told which choice it draws for (NewRequest.choice)"
        start = news["r2"].num_computed_tokens
        assert start == 0, f"r2 asks for the prompt's log-probabilities, and {start} tokens of it are not computed"

    def test_preempt_all_keeps_what_was_put_out(self, loaded: LoadedScheduler) -> None:
        """After ``preempt_all`` every block is free, and everything finishes with the same tokens."""
        loop = self.small(loaded)
        loop.add(*(make_request(number, 8, max_tokens=10) for number in range(20)))
        for _ in range(4):
            loop.step()
        loop.scheduler.preempt_all()
        held = loop.cache.num_blocks - loop.cache.num_free_blocks
        assert not held, f"after preempt_all {held} blocks are still held"
        loop.run()

    @pytest.mark.parametrize("constraint", sorted(_CONSTRAINTS))
    def test_each_constraint_is_kept_by_any_order(self, loaded: LoadedScheduler, constraint: str) -> None:
        """SHAPE: what a runner can take, alone, under a load in which every order would break it."""
        constraints = BatchConstraints(**_CONSTRAINTS[constraint])
        cache = KVCacheManager(
            num_blocks=40 + constraints.reserved_blocks, block_size=4, reserved_blocks=constraints.reserved_blocks
        )
        loop = CoreLoop(*loaded, limits=make_limits(), cache=cache, constraints=constraints)
        for number in range(24):
            prompt = (7,) * 8 + tuple(range(100 * number, 100 * number + 7 * number % 40))
            loop.add(make_request(number, prompt, max_tokens=6, priority=number % 3, tenant=f"{number % 2}"))
            if number % 2:
                loop.step()
        loop.run()


class _Probed:
    """A request as the probe reads it."""

    def __init__(self, request: EngineRequest) -> None:
        self.request_id = request.request_id
        self.prompt_token_ids = request.prompt_token_ids

"""The policy's own order, and everything that enginebay asks of a scheduler."""

from __future__ import annotations

from typing import ClassVar

from enginebay_sjf.policy import ShortestJobFirst, SjfOptions

from enginebay.interfaces import SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.testing import CoreLoop, SchedulerSuite, make_limits, make_request


class TestConformance(SchedulerSuite):
    """enginebay's own suite, through the installed entry point."""

    name = "sjf"


class TestConformanceWithoutAgeing(SchedulerSuite):
    """The same with the option set."""

    name = "sjf"
    options: ClassVar = {"ageing": 0}


def order_of_start(options: SjfOptions, *jobs: tuple[int, int]) -> list[str]:
    """The ids of requests of these (prompt tokens, max_tokens), one second apart, in the order in which they start."""
    loop = CoreLoop(
        SchedulerPlugin(name="sjf", options=SjfOptions, factory=ShortestJobFirst),
        options,
        limits=make_limits(max_num_seqs=1),
        cache=KVCacheManager(num_blocks=64, block_size=4),
    )
    loop.add(*(make_request(number, length, max_tokens=most) for number, (length, most) in enumerate(jobs)))
    order = []
    while loop.scheduler.has_requests():
        order += [request.request_id for request in loop.step().new]
    return order


def test_the_shortest_job_starts_first() -> None:
    assert order_of_start(SjfOptions(ageing=0), (20, 1), (5, 9), (12, 1)) == ["r2", "r1", "r0"]


def test_prompts_alone_count_when_outputs_weigh_nothing() -> None:
    assert order_of_start(SjfOptions(ageing=0, output_weight=0), (20, 1), (5, 9), (12, 1)) == ["r1", "r2", "r0"]


def test_equal_jobs_keep_their_order() -> None:
    assert order_of_start(SjfOptions(ageing=0), (7, 1), (7, 1), (7, 1)) == ["r0", "r1", "r2"]


def test_a_long_job_is_forgiven_its_length_as_it_waits() -> None:
    assert order_of_start(SjfOptions(ageing=10), (20, 1), (5, 1), (12, 1)) == ["r1", "r0", "r2"]

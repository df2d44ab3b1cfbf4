"""The policy's own order, and everything that enginebay asks of a scheduler."""

from __future__ import annotations

from typing import ClassVar

from enginebay_shortest.policy import Shortest, ShortestOptions

from enginebay.interfaces import SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.testing import CoreLoop, SchedulerSuite, make_limits, make_request


class TestConformance(SchedulerSuite):
    """enginebay's own suite, through the installed entry point."""

    name = "shortest"


class TestConformanceWithoutAgeing(SchedulerSuite):
    """The same with the option set."""

    name = "shortest"
    options: ClassVar = {"ageing": 0}


def order_of_start(ageing: float, *prompts: int) -> list[str]:
    """The ids of requests with prompts of these lengths, one second apart, in the order in which they start."""
    loop = CoreLoop(
        SchedulerPlugin(name="shortest", options=ShortestOptions, factory=Shortest),
        ShortestOptions(ageing=ageing),
        limits=make_limits(max_num_seqs=1),
        cache=KVCacheManager(num_blocks=64, block_size=4),
    )
    loop.add(*(make_request(number, length, max_tokens=1) for number, length in enumerate(prompts)))
    order = []
    while loop.scheduler.has_requests():
        order += [request.request_id for request in loop.step().new]
    return order


def test_the_shortest_prompt_starts_first() -> None:
    assert order_of_start(0, 20, 5, 12) == ["r1", "r2", "r0"]


def test_equal_prompts_keep_their_order() -> None:
    assert order_of_start(0, 7, 7, 7) == ["r0", "r1", "r2"]


def test_a_long_prompt_is_forgiven_its_length_as_it_waits() -> None:
    assert order_of_start(10, 20, 5, 12) == ["r1", "r0", "r2"]

"""The policy's own order, and everything that enginebay asks of a scheduler."""

from __future__ import annotations

from typing import ClassVar

from enginebay_slo.policy import EarliestDueFirst, SloOptions

from enginebay.interfaces import SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.testing import CoreLoop, SchedulerSuite, make_limits, make_request


class TestConformance(SchedulerSuite):
    """enginebay's own suite, through the installed entry point."""

    name = "slo"


class TestConformanceWithoutPreemption(SchedulerSuite):
    """The same with the option set."""

    name = "slo"
    options: ClassVar = {"preempt": False}


def loop_of(options: SloOptions) -> CoreLoop:
    """A simulated core that runs one request at a time."""
    return CoreLoop(
        SchedulerPlugin(name="slo", options=SloOptions, factory=EarliestDueFirst),
        options,
        limits=make_limits(max_num_seqs=1),
        cache=KVCacheManager(num_blocks=64, block_size=4),
    )


def order_of_end(loop: CoreLoop) -> list[str]:
    """Ids in the order in which they end."""
    loop.run()
    return list(loop.finished)


def test_whoever_is_due_first_starts_first() -> None:
    loop = loop_of(SloOptions())
    loop.add(*(make_request(number, deadline=due) for number, due in enumerate((30.0, 10.0, 20.0))))
    assert order_of_end(loop) == ["r1", "r2", "r0"]


def test_a_request_without_a_deadline_is_due_after_the_default() -> None:
    loop = loop_of(SloOptions(default=15))
    loop.add(make_request(0, deadline=100.0), make_request(1, deadline=16.5), make_request(2))  # they come at 0, 1, 2
    assert order_of_end(loop) == ["r0", "r1", "r2"]


def test_a_tenant_can_be_promised_less_time() -> None:
    loop = loop_of(SloOptions(tenants={"gold": 0.5}))
    loop.add(
        make_request(0, deadline=5.0), make_request(1, tenant="gold"), make_request(2, tenant="gold", deadline=2.1)
    )
    assert order_of_end(loop) == ["r1", "r2", "r0"]


def test_one_that_is_due_sooner_takes_the_place_of_one_that_runs() -> None:
    for preempt, first in ((True, "r1"), (False, "r0")):
        loop = loop_of(SloOptions(preempt=preempt))
        loop.add(make_request(0, max_tokens=20, deadline=50.0))
        loop.step()
        loop.add(make_request(1, deadline=5.0))
        assert order_of_end(loop)[0] == first

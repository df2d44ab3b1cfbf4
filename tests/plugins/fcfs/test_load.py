"""fcfs under a long seeded load, through the mechanics and the simulated core that checks each step."""

from __future__ import annotations

from collections import Counter

from enginebay.messages import FinishReason
from enginebay.testing import CoreLoop, random_load
from enginebay_fcfs.plugin import enginebay_register_schedulers


def test_ten_thousand_requests_end_once_and_leave_nothing() -> None:  # S17
    """``run_load`` ends with ``check_quiet``: each ended once with its own tokens, all blocks free, counters zero.

    The rules of the step (budgets, blocks that are written before they are read, one owner) are checked at each one.
    """
    load = random_load(9, num_requests=10_000)
    (plugin,) = enginebay_register_schedulers()
    loop = CoreLoop(
        plugin,
        plugin.options(),
        limits=load.limits,
        cache=load.cache(),
        constraints=load.constraints,
        depth=2,
    )
    loop.run_load(load)
    ended = Counter(loop.finished.values())
    assert ended.total() == 10_000
    assert min(ended[FinishReason.STOP], ended[FinishReason.LENGTH], ended[FinishReason.ABORT]) > 300
    assert loop.preemptions > 1000, "a load that never runs out of blocks proves little"
    assert loop.cache.prefix_hits > 1000

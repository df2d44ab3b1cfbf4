"""What the mechanics' parts share: the lines, the cache, the door to the policy, and what the runner is yet to hear."""

from __future__ import annotations

from typing import Any

from enginebay.interfaces import Policy, SchedulerContext
from enginebay.scheduling._bounds import Bounds
from enginebay.scheduling._door import PolicyDoor
from enginebay.scheduling._draft import StepInFlight
from enginebay.scheduling._gate import PromptGate
from enginebay.scheduling._line import WaitingLine
from enginebay.scheduling._record import Record


class State:
    """``running`` is in running order; ``in_flight`` holds the steps that are not acknowledged, oldest first.

    ``prefilling``: a running request may have more to prefill. False once a look has found none, until one starts or is
    rolled back.
    ``refused`` is the waiting request for which nobody gives way: the policy said so, or those that would are not
    enough, and since then nobody has started or left. None where none is known.
    """

    def __init__(self, policy: Policy[Any], context: SchedulerContext[Any]) -> None:
        self.kv = context.kv_cache
        self.propose = context.propose
        self.stages = context.num_stages
        self.bounds = Bounds.join(context.limits, context.constraints, self.kv.num_blocks)
        self.door = PolicyDoor(policy)
        self.requests: dict[str, Record] = {}
        self.running: dict[str, Record] = {}
        self.prefilling = False
        self.refused: Record | None = None
        self.line = WaitingLine(self.door)
        self.gate = PromptGate(self.line, self.kv, prefix_caching=self.bounds.prefix_caching)
        self.in_flight: dict[int, StepInFlight] = {}
        self.finished_unsaid: list[str] = []
        self.preempted_unsaid: list[str] = []
        self.num_preemptions = 0

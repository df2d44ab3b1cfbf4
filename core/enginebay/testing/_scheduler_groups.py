"""The part of the schedulers' suite on policies whose requests wait in groups: what a group's key may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from enginebay.interfaces import Policy, RequestView, SchedulerContext, SchedulerPlugin
from enginebay.testing._loads import make_limits, make_request, random_load
from enginebay.testing._loop import CoreLoop
from enginebay.testing._scheduler_base import LoadedScheduler, SchedulerBase

_STEPS = 2_000


class GroupTests(SchedulerBase):
    """The keys are asked for between steps, of groups in which a request waits that has not begun yet."""

    def test_a_groups_key_only_grows_while_somebody_waits_in_it(self, loaded: LoadedScheduler) -> None:
        """GROUPS: groups are put in order only when they come up, so one whose key falls would come up too late."""
        plugin, options = loaded
        policies: list[Policy[Any]] = []
        groups: dict[str, str] = {}

        def watched(context: SchedulerContext[Any]) -> Any:
            made = plugin.factory(context)
            if isinstance(made, Policy) and getattr(made.group, "__func__", None) is not Policy.group:
                policies.append(made)
                _note_groups(made, groups)
            return made

        spy = SchedulerPlugin(
            name=plugin.name, factory=watched, options=plugin.options, capabilities=plugin.capabilities
        )
        for loop in self._crowded((spy, options)):
            if not policies:  # it has no groups, or is a whole scheduler, whose lines are its own
                return
            _check_keys(policies[-1], loop, groups)
            groups.clear()

    def _crowded(self, spied: LoadedScheduler) -> Iterator[CoreLoop]:
        """Simulated cores with far more requests than run at once: of every tenant and priority, and at random."""
        loop = self.small(spied, limits=make_limits(max_num_seqs=2))
        for number in range(36):
            prompt = 3 + 5 * number % 23
            loop.add(make_request(number, prompt, max_tokens=3, priority=number % 3, tenant=f"{number % 2}"))
        yield loop
        for seed in (3, 4, 5):
            load = random_load(seed)
            loop = self.loop(spied, load)
            loop.add(*(request for arrivals in load.arrivals.values() for request in arrivals))
            yield loop


def _note_groups(policy: Policy[Any], groups: dict[str, str]) -> None:
    """Let ``groups`` hear in which group each request waits."""
    asked = policy.group

    def group(request: RequestView) -> str:
        groups[request.request_id] = name = asked(request)
        return name

    vars(policy)["group"] = group


def _check_keys(policy: Policy[Any], loop: CoreLoop, groups: dict[str, str]) -> None:
    """Run the loop to its end, and compare the keys that each group has before and after a step."""
    before: dict[str, tuple[Any, ...]] = {}
    for _ in range(_STEPS):
        waiting = {groups[one] for one in loop.unfinished if one not in loop.runner.live and one in groups}
        now = {group: policy.group_key(group) for group in waiting}
        for group in sorted(now.keys() & before.keys()):
            assert not now[group] < before[group], (
                f"group_key({group!r}) fell from {before[group]} to {now[group]} while a request waits in that group: "
                "it may only grow"
            )
        if not waiting:
            break
        before = now
        loop.step()
    loop.run()

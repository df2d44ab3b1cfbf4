"""Pipeline stages: the running requests are shared out to steps in a row, so that each stage has its own to work on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import BatchConstraints, NoOptions, RequestView
from enginebay.kvcache import KVCacheManager
from enginebay.messages import ModelRunnerOutput, SchedulerOutput
from enginebay.testing import CoreLoop, make_limits, make_request
from support.guesses import Guesser
from support.loop import Arrival, loop_of, plugin_of, scheduled
from support.policies import EVERY, policy_plugin
from support.schedule_watch import watch


def steps_of(loop: CoreLoop, count: int) -> list[list[int]]:
    """The numbers of the requests in each of the next steps that hold tokens."""
    steps: list[list[int]] = []
    while len(steps) < count:
        if rows := scheduled(loop.step()):
            steps.append([int(request_id[1:]) for request_id in rows])
    return steps


@pytest.mark.parametrize(
    ("requests", "stages", "depth", "expected"),
    [
        (1, 2, 3, [[0], [0], [0], [0]]),
        (2, 2, 3, [[0], [1], [0], [1], [0], [1]]),
        (3, 2, 3, [[0, 1], [2], [0, 1], [2]]),
        (4, 2, 3, [[0, 1], [2, 3], [0, 1], [2, 3]]),
        (4, 2, 2, [[0, 1], [2, 3], [0, 1], [2, 3]]),
        (2, 3, 4, [[0], [1], [0], [1], [0], [1]]),
        (3, 3, 4, [[0], [1], [2], [0], [1], [2]]),
        (7, 3, 4, [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2], [3, 4, 5], [6]]),
        (4, 1, 2, [[0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
)
def test_each_stage_has_requests_of_its_own(
    requests: int, stages: int, depth: int, expected: list[list[int]]
) -> None:  # E3
    loop = loop_of(depth=depth, num_stages=stages)
    loop.add(*(make_request(number, 6, max_tokens=30) for number in range(requests)))
    assert steps_of(loop, len(expected)) == expected
    loop.run()


@pytest.mark.parametrize(
    ("left", "shares"), [((0, 1, 2, 3), [2, 2]), ((0, 1, 2, 3, 4), [3, 2]), ((0, 1, 2, 7), [2, 2])]
)
def test_what_is_left_is_shared_out_anew(left: tuple[int, ...], shares: list[int]) -> None:
    """Others ended, most of them or all of one stage: some stay behind their step, and both shares go on."""
    loop = loop_of(depth=3, num_stages=2)
    loop.add(*(make_request(number, 6, max_tokens=20 if number in left else 2) for number in range(8)))
    steps = steps_of(loop, 16)
    assert [len(step) for step in steps[:2]] == [4, 4]
    assert sorted(map(len, steps[-2:]), reverse=True) == shares
    assert sorted(steps[-1] + steps[-2]) == sorted(left)
    loop.run()


def test_whoever_gives_way_makes_room_for_another_row() -> None:  # S10
    class First(Arrival):
        def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
            return 0

    loop = loop_of(First, num_blocks=8, prefix_caching=False, num_stages=2)
    loop.add(*(make_request(number, prompt, max_tokens=8) for number, prompt in enumerate((4, 5, 7, 5))))
    assert steps_of(loop, 5) == [[0, 1], [0, 2], [1, 0, 3], [2, 0], [1, 3]]
    step = loop.step()  # r0 has a row when r2 asks for a block
    assert (step.preempted, list(scheduled(step))) == (("r0",), ["r2", "r1"])
    loop.run()


def test_a_newcomer_waits_for_no_more_than_what_stages_need() -> None:
    """Alone, a request has one step that runs and one behind it, though there is room for more."""
    loop = loop_of(depth=4, num_stages=3)
    loop.add(make_request(0, 6, max_tokens=30))
    steps = [loop.scheduler.schedule() for _ in range(4)]
    assert [len(step.num_scheduled_tokens) for step in steps] == [1, 1, 0, 0]


def test_chunks_of_one_prompt_follow_each_other() -> None:
    """They wait for no token, so nobody else is needed to keep the stages busy."""
    loop = loop_of(depth=3, num_stages=2, limits=make_limits(max_num_batched_tokens=8))
    loop.add(make_request(0, 24, max_tokens=3))
    assert [scheduled(loop.step()) for _ in range(3)] == [{"r0": 8}] * 3
    loop.run()


@pytest.mark.parametrize("mixed", [True, False])
def test_prompts_go_to_different_stages(mixed: bool) -> None:
    loop = loop_of(depth=3, num_stages=2, constraints=BatchConstraints(mixed_prefill_decode=mixed))
    loop.add(*(make_request(number, 40, max_tokens=4) for number in range(6)))
    assert steps_of(loop, 2) == [[0, 1, 2], [3, 4, 5]]
    loop.run()


def test_decode_rows_leave_room_for_a_prompt() -> None:
    loop = loop_of(depth=3, num_stages=2)
    loop.add(*(make_request(number, 6, max_tokens=40) for number in range(5)))
    steps_of(loop, 6)
    loop.add(make_request(5, 6, max_tokens=4))
    assert 5 in steps_of(loop, 1)[0]
    loop.run()


class Watched(CoreLoop):
    """Keeps, for each request, how many steps of others came since its last one."""

    def __init__(self, *args: Any, num_stages: int, depth: int, **kwargs: Any) -> None:
        super().__init__(*args, num_stages=num_stages, depth=depth, **kwargs)
        self.stages, self.decoding = num_stages, dict[str, int]()
        self.turn, self.turns = 0, defaultdict[str, Counter[str]](Counter)

    def _execute(self, output: SchedulerOutput) -> None:
        flying = Counter(one for step, *_ in self._queue for one in step.num_scheduled_tokens)
        drawing = {one for _, result, *_ in self._queue for one in drawn_of(result)}
        super()._execute(output)
        rows = output.num_scheduled_tokens
        if not rows:
            return
        self.turn += 1
        self._is_spread(output, flying, drawing)
        self._is_fair(output)
        for one in rows:
            self.decoding[one] = self.turn
            self.turns[one].clear()

    def _is_spread(self, output: SchedulerOutput, flying: Counter[str], drawing: set[str]) -> None:
        """Who waits for a step just before makes no row of a step that others could have had."""
        rows = output.num_scheduled_tokens
        waits = {one for one in rows if one in drawing and self.decoding[one] > self.turn - self.stages}
        assert not waits or waits == rows.keys(), f"{waits} hold up {rows.keys() - waits}"
        assert all(flying[one] < 2 for one in waits), "queued, though a step of it is queued"
        rest = {one for one in self.decoding if one not in self.finished and one not in rows}
        free = {one for one in rest if not flying[one]}
        assert not waits or not free, f"{waits} wait for tokens in a stage, and {free} would not"

    def _is_fair(self, output: SchedulerOutput) -> None:
        rows = output.num_scheduled_tokens
        for one in self.decoding:
            if one not in rows and one not in self.finished and len(self.output[one]) < self._left(one):
                self.turns[one].update(rows.keys())
                assert max(self.turns[one].values()) <= 2, f"{one} stands still: {self.turns[one]}"

    def _left(self, request_id: str) -> int:
        """Tokens of a request that are not in flight when it is at its end."""
        flying = sum(request_id in step.num_scheduled_tokens for step, *_ in self._queue)
        return self.requests[request_id].params.max_tokens - flying


def drawn_of(result: ModelRunnerOutput) -> list[str]:
    """Who got a token."""
    return [one for one, drawn in zip(result.request_ids, result.sampled_token_ids, strict=True) if drawn]


EVENTS = st.lists(st.tuples(st.sampled_from(["add", "abort", "step", "step", "step"]), st.integers(1, 30)), max_size=60)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=20, deadline=None)
@given(stages=st.integers(2, 4), depth=st.integers(1, 5), events=EVENTS)
def test_nobody_holds_up_a_stage_and_nobody_stands_still(
    name: str, stages: int, depth: int, events: list[tuple[str, int]]
) -> None:
    """With room for all: whatever comes and goes, and in whatever order the policy has them start."""
    plugin = policy_plugin(name)
    cache = KVCacheManager(num_blocks=4000, block_size=4)
    limits = make_limits(max_num_seqs=100, max_num_batched_tokens=4000)
    loop = Watched(plugin, plugin.options(), limits=limits, cache=cache, num_stages=stages, depth=depth)
    watch(loop)
    for what, number in events:
        if what == "add":
            loop.add(make_request(len(loop.requests), 3 + number % 7, max_tokens=number))
        elif what == "abort":
            loop.abort(f"r{number}")
        else:
            loop.step()
    loop.run()


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_proposals_are_made_with_stages_too(right: float) -> None:
    guesser = Guesser(right=right, length=3)
    constraints = BatchConstraints(max_tokens_per_step=4)
    loop = loop_of(depth=3, num_stages=2, constraints=constraints, propose=guesser)
    guesser.loop = loop
    books = watch(loop)
    loop.add(*(make_request(number, 6, max_tokens=30) for number in range(5)))
    loop.run()
    books.quiet()
    assert loop.num_proposed > 50
    assert loop.num_accepted > 30 * right


class StagedLoop(CoreLoop):
    """A simulated core on a virtual clock, over stages that take ``fixed`` and ``per_token`` seconds for a step."""

    def __init__(self, *, stages: int, spread: bool, fixed: float, per_token: float) -> None:
        self.time, self.fixed, self.per_token = 0.0, fixed, per_token
        self.free, self.known = [0.0] * stages, dict[str, float]()
        self.done: list[float] = []
        limits = make_limits(max_num_seqs=32, max_num_batched_tokens=1024)
        cache = KVCacheManager(num_blocks=800, block_size=4)
        num_stages = stages if spread else 1
        super().__init__(
            plugin_of(Arrival), NoOptions(), limits=limits, cache=cache, depth=stages + 1, num_stages=num_stages
        )

    def now(self) -> float:
        """Seconds of the virtual clock."""
        return self.time

    def _execute(self, output: SchedulerOutput) -> None:
        super()._execute(output)
        if not output.num_scheduled_tokens:
            return
        _, result, *_ = self._queue[-1]
        at = max(self.time, *(self.known.get(one, 0.0) for one in output.num_scheduled_tokens))
        for stage, free in enumerate(self.free):
            at = self.free[stage] = max(at, free) + self.fixed + self.per_token * output.total_num_scheduled_tokens
        self.known.update(dict.fromkeys(drawn_of(result), at))
        self.done.append(at)

    def _commit(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        self.time = max(self.time, self.done.pop(0))
        super()._commit(output, result)


@pytest.mark.parametrize(
    ("stages", "fixed", "per_token", "least", "most"),
    [
        (2, 0.005, 0.0, 0.97, 1.0),  # a step that takes the same whatever it holds: nothing is gained, or lost
        (2, 0.001, 0.000125, 1.5, 2.0),
        (3, 0.001, 0.000125, 1.9, 3.0),
        (2, 0.0, 0.00015, 1.7, 2.0),
    ],
)
def test_stages_work_at_the_same_time(stages: int, fixed: float, per_token: float, least: float, most: float) -> None:
    """On a virtual clock, with a queue of stages + 1 steps."""

    def seconds(spread: bool) -> float:
        loop = StagedLoop(stages=stages, spread=spread, fixed=fixed, per_token=per_token)
        loop.add(*(make_request(number, 16, max_tokens=40) for number in range(32)))
        loop.run()
        return loop.time

    assert least <= seconds(spread=False) / seconds(spread=True) <= most

"""Groups whose order moves: always the first of the least group, at a cost that does not grow with who waits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.errors import PolicyFailed
from enginebay.interfaces import NoOptions, Policy, PolicyState, RequestView, SchedulerContext
from enginebay.messages import FinishReason
from enginebay.scheduling._groups import Groups
from enginebay.testing import make_limits, make_request
from support.loop import Arrival, loop_of

END = " The engine stops, since no other rule may take its place: correct it, or set [scheduler] use to another."


class Turns(Policy[NoOptions]):
    """The tenant that started the fewest requests is next; within it, the smallest priority."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context)
        self.started: dict[str, int] = {}
        self.asked = 0

    def key(self, request: RequestView) -> tuple[int]:
        return (request.priority,)

    def group(self, request: RequestView) -> str:
        return request.tenant

    def group_key(self, group: str) -> tuple[int]:
        self.asked += 1
        return (self.started.get(group, 0),)

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        self.started[request.tenant] = self.started.get(request.tenant, 0) + 1
        return True


@settings(max_examples=40, deadline=None)
@given(
    waiting=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, max_size=40),
    late=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3)), max_size=20),
    aborted=st.sets(st.integers(0, 30), max_size=10),
)
def test_the_first_of_the_least_group_is_next(
    waiting: list[tuple[str, int]], late: list[tuple[str, int]], aborted: set[int]
) -> None:
    """Against a search of all that wait, one request at a time."""
    loop = loop_of(Turns, limits=make_limits(max_num_seqs=1))
    left: dict[str, tuple[str, int, int]] = {}

    def add(tenant: str, priority: int) -> None:
        number = len(loop.requests)
        loop.add(make_request(number, 4, tenant=tenant, priority=priority, max_tokens=1))
        left[f"r{number}"] = (tenant, priority, number)

    for one in waiting:
        add(*one)
    loop.abort(*(f"r{number}" for number in aborted))
    for number in aborted:
        left.pop(f"r{number}", None)
    started: dict[str, int] = {}
    coming = iter(late)
    while left:
        [new] = loop.step().new
        tenant, *_ = left[new.request_id]
        least = min(started.get(other, 0) for other, *_ in left.values())
        assert started.get(tenant, 0) == least
        assert left.pop(new.request_id)[1:] <= min([one[1:] for one in left.values() if one[0] == tenant], default=(9,))
        started[tenant] = least + 1
        for one in islice(coming, 1):
            add(*one)
    loop.run()


@pytest.mark.parametrize("tenants", [1, 100, 10_000])
def test_a_step_asks_for_the_keys_of_what_changed(tenants: int) -> None:
    loop = loop_of(Turns, limits=make_limits(max_num_seqs=2), prefix_caching=False)
    policy: Turns = loop.scheduler._state.door._policy  # type: ignore[attr-defined]  # its counter is the point
    loop.add(*(make_request(number, 4, tenant=f"{number % tenants}", max_tokens=1) for number in range(10_000)))
    before = policy.asked
    for _ in range(50):
        loop.step()
    assert policy.asked - before <= 50 * 2 * 3
    loop.abort(*loop.requests)
    loop.run()


def test_those_that_were_aborted_do_not_pile_up() -> None:
    loop = loop_of(Turns, limits=make_limits(max_num_seqs=1))
    for number in range(2000):
        loop.add(make_request(number, 4, tenant=f"{number % 7}", priority=number))
        if number % 2:
            loop.abort(f"r{number}")
    loop.abort(*(f"r{number}" for number in range(2000)))
    groups = loop.scheduler._state.line._groups  # type: ignore[attr-defined]  # what it keeps is the point
    assert len(groups) <= 64
    loop.run()


class Forgetful(Turns):
    """Counts anew for a tenant of whom nobody is left."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context)
        self.live: dict[str, int] = {}

    def key(self, request: RequestView) -> tuple[int]:
        self.live[request.tenant] = self.live.get(request.tenant, 0) + 1
        return super().key(request)

    def on_finished(self, request: RequestView, reason: FinishReason) -> None:
        self.live[request.tenant] -= 1
        if not self.live[request.tenant]:
            self.started.pop(request.tenant, None)


@pytest.mark.parametrize("tenants", [1, 50, 2000])
def test_leaving_costs_the_same_in_however_many_groups(tenants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is cleared when half of it is dead, and not again before as many have left."""
    cleared: list[int] = []
    compact = Groups.compact
    monkeypatch.setattr(Groups, "compact", lambda groups: (cleared.append(len(groups)), compact(groups)))
    loop = loop_of(Turns, limits=make_limits(max_num_seqs=1))
    loop.add(*(make_request(number, 4, tenant=f"t{number % tenants}") for number in range(2000)))
    loop.step()
    for number in range(1, 2000):
        loop.scheduler.finish_requests([f"r{number}"], FinishReason.ABORT)
    assert 1 <= len(cleared) <= 5, "each time twice as many as wait"
    assert sum(cleared) <= 4 * 2000


class Slippery(str):
    """Another hash each time."""

    asked = 0

    def __hash__(self) -> int:
        Slippery.asked += 1
        return Slippery.asked


def test_a_group_s_name_is_its_text() -> None:
    class Odd(Turns):
        def group(self, request: RequestView) -> str:
            return Slippery(request.tenant)

    loop = loop_of(Odd, limits=make_limits(max_num_seqs=2))
    loop.add(*(make_request(number, 4, tenant="ab"[number % 2], max_tokens=2) for number in range(6)))
    loop.run(max_steps=50)
    assert not Slippery.asked


@pytest.mark.parametrize("aborted", [0, 1, 3])
def test_a_key_that_fell_while_nobody_waited_counts(aborted: int) -> None:
    loop = loop_of(Forgetful, limits=make_limits(max_num_seqs=1))
    loop.add(*(make_request(number, 4, tenant="a", max_tokens=1) for number in range(3)))
    loop.run()
    loop.add(make_request(3, 4, tenant="a", max_tokens=3), make_request(4, 4, tenant="b", max_tokens=3))
    loop.step()  # of a one runs, and one of b waits
    loop.add(make_request(5, 4, tenant="b", max_tokens=3))
    for number in range(10, 10 + aborted):
        loop.add(make_request(number, 4, tenant="a", max_tokens=1))
        loop.abort(f"r{number}")
    while "r4" not in loop.finished:
        loop.step()  # a is forgotten, and b has started one
    loop.add(make_request(6, 4, tenant="a", max_tokens=1))
    started = [new.request_id for _ in range(12) for new in loop.step().new]
    assert started == ["r6", "r5"]


def test_a_key_that_grows_with_every_look_does_not_hold_the_step_up() -> None:
    class Restless(Turns):
        def group_key(self, group: str) -> tuple[int]:
            self.asked += 1
            return (self.asked,)

    loop = loop_of(Restless, limits=make_limits(max_num_seqs=3))
    loop.add(*(make_request(number, 4, tenant=f"{number % 5}") for number in range(30)))
    loop.run()


def broken(**methods: Any) -> type[Policy[NoOptions]]:
    return type("Broken", (Turns,), {"__module__": "acme.policy", **methods})


def boom(*_: object) -> Any:
    raise KeyError("weights")


def group_with_window(self: object, request: RequestView) -> str:
    return ""


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (broken(group=boom), "group() raised KeyError: 'weights'."),
        (broken(group_key=boom), "group_key() raised KeyError: 'weights'."),
        (broken(group=lambda *_: 7), "group() returned 7 for request 'r0': a string is expected."),
        (broken(group_key=lambda *_: 7), "group_key() returned 7 for group 'a': a tuple is expected."),
        (
            broken(window=3),
            "it has a window of 3 and groups (group() is overridden), and only one of the two can say who is next.",
        ),
    ],
)
def test_what_is_wrong_is_told_by_name(policy: type[Policy[NoOptions]], message: str) -> None:
    with pytest.raises(PolicyFailed) as failed:
        loop_of(policy).add(make_request(0, tenant="a"))
    assert str(failed.value) == f"policy acme.policy.Broken: {message}{END}"


@pytest.mark.parametrize("method", ["group_key", "key"])
def test_keys_that_do_not_compare_are_told(method: str) -> None:
    answers = iter([(1,), ("text",), (1,)])  # of whom two are compared when the second comes
    wrong: Callable[..., Any] = lambda *_: next(answers)  # noqa: E731  # a method that is put into a class
    loop = loop_of(broken(**{method: wrong}))
    with pytest.raises(PolicyFailed, match=rf"the keys that {method}\(\) returned cannot be compared: TypeError"):
        loop.add(*(make_request(number, tenant="a" if method == "key" else f"{number}") for number in range(3)))


def test_without_groups_nothing_is_asked() -> None:
    assert loop_of(Arrival).scheduler._state.line._groups is None  # type: ignore[attr-defined]

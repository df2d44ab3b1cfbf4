"""Policies that raise, answer nonsense or write where they may only read: each a named error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from enginebay.errors import PluginBroken, PolicyFailed
from enginebay.interfaces import NoOptions, Policy, PolicyState, RequestView, SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.messages import FinishReason, StepReport
from enginebay.scheduling import MechanicsScheduler
from enginebay.testing import CoreLoop, make_limits, make_request
from support.loop import Arrival, loop_of

END = " The engine stops, since no other rule may take its place: correct it, or set [scheduler] use to another."


def broken(**methods: Any) -> type[Policy[NoOptions]]:
    return type("Broken", (Arrival,), {"__module__": "acme.policy", **methods})


def boom(*_: object) -> Any:
    raise KeyError("weights")


def writes(field: str) -> Callable[..., Any]:
    def write(self: object, request: RequestView, *_: object) -> None:
        setattr(request, field, 7)

    return write


def fails(policy: type[Policy[NoOptions]], *, depth: int = 1) -> PolicyFailed:
    with pytest.raises(PolicyFailed) as failed:
        _run(policy, depth)
    return failed.value


def _run(policy: type[Policy[NoOptions]], depth: int) -> None:
    loop = loop_of(policy, num_blocks=4, depth=depth)
    loop.add(*(make_request(number, 7, max_tokens=8) for number in range(3)))
    loop.run(max_steps=100)


@pytest.mark.parametrize("method", ["key", "victim", "admit", "on_scheduled", "on_output", "on_finished"])
def test_what_a_policy_raises_is_told_by_name(method: str) -> None:
    error = fails(broken(**{method: boom}))
    assert str(error) == f"policy acme.policy.Broken: {method}() raised KeyError: 'weights'.{END}"
    assert isinstance(error.__cause__, KeyError)


def test_choose_and_on_step_too() -> None:
    assert "Broken: choose() raised KeyError" in str(fails(broken(window=2, choose=boom)))
    scheduler = loop_of(broken(on_step=boom)).scheduler
    report = StepReport(
        step=0,
        generation=0,
        num_requests=0,
        num_scheduled_tokens=0,
        num_committed_tokens=0,
        start_ns=0,
        scheduled_ns=0,
        executed_ns=0,
        end_ns=0,
        stats=scheduler.make_stats(),
    )
    with pytest.raises(PolicyFailed, match=r"Broken: on_step\(\) raised KeyError"):
        scheduler.on_step(report)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"victim": lambda *_: 9}, "victim() returned 9 for 2 candidates: an index from 0 to 1, or None, is expected"),
        (
            {"victim": lambda *_: -1},
            "victim() returned -1 for 2 candidates: an index from 0 to 1, or None, is expected",
        ),
        (
            {"victim": lambda *_: True},
            "victim() returned True for 2 candidates: an index from 0 to 1, or None, is expected",
        ),
        (
            {"window": 2, "choose": lambda *_: None},
            "choose() returned None for 2 requests: an index from 0 to 1 is expected",
        ),
        ({"admit": lambda *_: None}, "admit() returned None for request 'r0': True or False is expected"),
        ({"key": lambda *_: 3}, "key() returned 3 for request 'r0': a tuple is expected"),
    ],
)
def test_a_wrong_answer_is_told_with_what_was_expected(methods: dict[str, Any], message: str) -> None:
    assert str(fails(broken(**methods))) == f"policy acme.policy.Broken: {message}.{END}"


def test_keys_that_do_not_compare_are_told() -> None:
    def key(self: object, request: RequestView) -> tuple[Any, ...]:
        return (request.arrival_number if request.arrival_number % 2 else "text",)

    assert str(fails(broken(key=key))) == (
        "policy acme.policy.Broken: the keys that key() returned cannot be compared: "
        f"TypeError: '<' not supported between instances of 'int' and 'str'.{END}"
    )


class Moody:
    """Compares until it does not."""

    broken = False

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: Moody) -> bool:
        if Moody.broken:
            raise ValueError("not today")
        return self.number < other.number


@pytest.mark.parametrize("methods", [{}, {"group": lambda *_: "all", "group_key": lambda *_: (0,)}, {"window": 4}])
def test_keys_that_stop_comparing_are_told_whenever_it_is(
    methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(self: object, request: RequestView) -> tuple[Any, ...]:
        return (Moody(-request.arrival_number),)

    scheduler = loop_of(broken(key=key, **methods)).scheduler
    for number in range(300):
        scheduler.add_request(make_request(number))
    monkeypatch.setattr(Moody, "broken", True)
    with pytest.raises(PolicyFailed, match=r"the keys that key\(\) returned cannot be compared: ValueError: not today"):
        scheduler.finish_requests([f"r{number}" for number in range(290)], FinishReason.ABORT)


def test_a_wrong_window_is_told() -> None:
    assert str(fails(broken(window=-1))) == (
        f"policy acme.policy.Broken: window is -1: a number from 0 on is expected.{END}"
    )


@pytest.mark.parametrize("field", ["priority", "num_computed_tokens", "request_id", "mark"])
def test_a_view_cannot_be_written(field: str) -> None:
    error = fails(broken(on_scheduled=writes(field)))
    assert "Broken: on_scheduled() raised AttributeError: " in str(error)


def test_extra_cannot_be_written() -> None:
    def write(self: object, request: Any, *_: object) -> tuple[int]:
        request.extra["acme"] = b"1"
        return (1,)

    assert "'mappingproxy' object does not support item assignment" in str(fails(broken(key=write)))


def test_lists_that_a_policy_keeps_or_empties_are_its_own() -> None:
    kept: list[Any] = []

    def victim(self: object, candidates: Sequence[RequestView], needed: RequestView) -> int:
        last = len(candidates) - 1
        kept.append(candidates)
        candidates.clear()  # type: ignore[attr-defined]  # that is what must not matter
        return last

    loop = loop_of(broken(victim=victim), num_blocks=4)
    loop.add(make_request(0, 7, max_tokens=8), make_request(1, 7, max_tokens=8))
    loop.run()
    assert kept


def test_the_cache_that_a_policy_sees_cannot_be_changed() -> None:
    seen: list[str] = []

    class Look(Arrival):
        def admit(self, request: RequestView, state: PolicyState) -> bool:
            seen.extend(name for name in ("reset", "free", "allocate", "pool") if hasattr(self.context.kv, name))
            return self.context.kv.cached_prefix_tokens(request) >= 0

    loop = loop_of(Look)
    loop.add(make_request(0))
    loop.run()
    assert seen == []


def test_views_read_what_they_promise() -> None:
    views: list[RequestView] = []

    class Keep(Arrival):
        def on_finished(self, request: RequestView, reason: FinishReason) -> None:
            views.append(request)

    loop = loop_of(Keep)
    loop.add(make_request(5, 8, max_tokens=3, priority=2, tenant="t", deadline=9.0))
    loop.run()
    (view,) = views
    assert (view.request_id, view.arrival, view.arrival_number, view.priority) == ("r5", 5.0, 5, 2)
    assert (view.tenant, view.deadline, dict(view.extra), view.max_tokens) == ("t", 9.0, {}, 3)
    assert (view.num_prompt_tokens, view.num_output_tokens, view.num_tokens) == (8, 3, 11)
    assert (len(view.prompt_token_ids), view.num_computed_tokens, view.num_preemptions) == (8, 10, 0)
    assert repr(view) == "<request 'r5': 8+3 tokens>"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            lambda context: 3,
            "scheduler 'acme' could not be made: its factory returned int, and a Policy or a Scheduler is expected",
        ),
        (boom, "scheduler 'acme' could not be made: its factory raised KeyError: 'weights'"),
    ],
)
def test_a_factory_that_fails_is_told(factory: Any, message: str) -> None:
    cache = KVCacheManager(num_blocks=4, block_size=4)
    with pytest.raises(PluginBroken) as failed:
        CoreLoop(SchedulerPlugin(name="acme", factory=factory), NoOptions(), limits=make_limits(), cache=cache)
    assert str(failed.value) == message


def test_the_mechanics_are_not_for_subclassing() -> None:
    with pytest.raises(TypeError) as failed:
        type("Mine", (MechanicsScheduler,), {})
    assert str(failed.value) == "Mine subclasses MechanicsScheduler: write a Policy, or a whole Scheduler"

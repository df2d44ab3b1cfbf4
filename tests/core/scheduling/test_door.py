"""The door to a policy: whatever it raises, cannot say, sets on itself or answers by another library's types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from enginebay.errors import PluginBroken, PolicyFailed
from enginebay.interfaces import NoOptions, Options, Policy, PolicyState, RequestView, SchedulerContext
from enginebay.kvcache import KVCacheManager
from enginebay.messages import FinishReason, StepReport
from enginebay.testing import make_request
from support.leaving import PAST_EXCEPTION, NoWords, in_a_thread
from support.loop import Arrival, loop_of

METHODS: dict[str, dict[str, Any]] = {
    "key": {},
    "choose": {"window": 2},
    "victim": {},
    "admit": {},
    "group": {},
    "group_key": {"group": lambda self, request: request.tenant},
    "on_scheduled": {},
    "on_output": {},
    "on_finished": {},
    "on_step": {},
}
"""Each method of a policy that is called, with what it takes for it to be called."""

ATTRIBUTES = ["window", "may_overtake_preempted", "preempts_running"]


def play(policy: type[Policy[NoOptions]]) -> None:
    """Enough requests in so small a cache that every method is called."""
    loop = loop_of(policy, num_blocks=4)
    loop.add(*(make_request(number, 7, max_tokens=8) for number in range(3)))
    loop.run(max_steps=100)
    zeros = dict.fromkeys(StepReport.__struct_fields__, 0)
    loop.scheduler.on_step(StepReport(**{**zeros, "stats": loop.scheduler.make_stats()}))


def broken(**members: Any) -> type[Policy[NoOptions]]:
    return type("Broken", (Arrival,), {"__module__": "acme.policy", **members})


def raising(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def method(*_: object) -> Any:
        raise error()

    return method


def test_every_method_is_tried() -> None:
    public = {name for name, value in vars(Policy).items() if callable(value) and not name.startswith("_")}
    assert public == set(METHODS)


@pytest.mark.parametrize("kind", PAST_EXCEPTION)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_raised_past_exception_is_named_too(method: str, kind: type[BaseException]) -> None:
    policy = broken(**METHODS[method], **{method: raising(lambda: kind("x"))})
    error = in_a_thread(lambda: play(policy))
    assert isinstance(error, PolicyFailed)
    assert str(error).startswith(f"policy acme.policy.Broken: {method}() raised {kind.__name__}: x. The engine stops")


@pytest.mark.parametrize("method", METHODS)
def test_a_real_ctrl_c_is_not_the_policys(method: str) -> None:
    with pytest.raises(KeyboardInterrupt):  # in the main thread, where signals arrive
        play(broken(**METHODS[method], **{method: raising(KeyboardInterrupt)}))


@pytest.mark.parametrize("method", METHODS)
def test_an_error_without_words_still_says_who_and_where(method: str) -> None:
    with pytest.raises(PolicyFailed) as failed:
        play(broken(**METHODS[method], **{method: raising(NoWords)}))
    assert f"policy acme.policy.Broken: {method}() raised NoWords: (its text cannot be had)." in str(failed.value)


@pytest.mark.parametrize("method", ["key", "choose", "victim", "admit", "group", "group_key"])
def test_an_answer_that_cannot_be_shown_still_says_who_and_where(method: str) -> None:
    with pytest.raises(PolicyFailed) as failed:
        play(broken(**METHODS[method], **{method: lambda *_: NoWords()}))
    assert str(failed.value).startswith(
        f"policy acme.policy.Broken: {method}() returned a NoWords that cannot be shown for "
    )


@pytest.mark.parametrize("kind", [ValueError, *PAST_EXCEPTION])
@pytest.mark.parametrize("name", [*ATTRIBUTES, "admit", "on_step"])
def test_a_property_that_raises_is_named(name: str, kind: type[BaseException]) -> None:
    policy = broken(**{name: property(raising(lambda: kind("w")))})
    error = in_a_thread(lambda: loop_of(policy))
    assert isinstance(error, PolicyFailed)
    assert str(error).startswith(f"policy acme.policy.Broken: {name} raised {kind.__name__}: w. The engine stops")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_init_sets_counts(method: str) -> None:
    called: list[str] = []

    class Own(Arrival):
        def __init__(self, context: SchedulerContext[NoOptions]) -> None:
            super().__init__(context)
            if method == "choose":
                self.window = 2
            if method == "group_key":
                setattr(self, "group", lambda request: request.tenant)  # noqa: B010  # mypy would not have it otherwise
            original = getattr(self, method)

            def own(*arguments: Any) -> Any:
                called.append(method)
                return original(*arguments)

            setattr(self, method, own)

    play(Own)
    assert called


def test_an_index_may_be_any_library_s() -> None:
    class Numpy(Arrival):
        window = np.int64(2)  # type: ignore[assignment]  # as a reader of arrays would write it

        def choose(self, requests: Sequence[RequestView]) -> Any:
            return np.argmin([request.num_prompt_tokens for request in requests])

        def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> Any:
            return np.argmax([request.arrival_number for request in candidates])

        def admit(self, request: RequestView, state: PolicyState) -> Any:
            return np.int64(state.num_free_blocks) >= 0

    play(Numpy)


@pytest.mark.parametrize(
    ("method", "answer", "shown"),
    [
        ("choose", 0.0, "0.0"),
        ("choose", np.float64(0), "np.float64(0.0)"),
        ("choose", np.True_, "np.True_"),
        ("choose", True, "True"),
        ("choose", "0", "'0'"),
        ("choose", np.int64(-1), "np.int64(-1)"),
        ("victim", np.False_, "np.False_"),
        ("admit", np.int64(1), "np.int64(1)"),
        ("admit", 1, "1"),
        ("admit", np.array([True, True]), "array([ True,  True])"),
    ],
)
def test_what_is_no_index_and_no_truth_is_refused(method: str, answer: Any, shown: str) -> None:
    with pytest.raises(PolicyFailed) as failed:
        play(broken(**METHODS[method], **{method: lambda *_: answer}))
    assert str(failed.value).startswith(f"policy acme.policy.Broken: {method}() returned {shown} for ")


def reachable(root: object) -> Iterator[object]:
    """Whatever public names lead to, a few steps deep."""
    seen: set[int] = set()
    todo = [(root, 0)]
    while todo:
        one, depth = todo.pop()
        if id(one) in seen or depth > 4 or isinstance(one, Options) or type(one).__module__ == "builtins":
            continue
        seen.add(id(one))
        yield one
        names = [name for name in dir(one) if not name.startswith("_")]
        todo += [(getattr(one, name), depth + 1) for name in names]


def test_no_public_name_leads_to_what_can_write_to_the_cache() -> None:
    contexts: list[Any] = []

    class Keep(Arrival):
        def __init__(self, context: SchedulerContext[NoOptions]) -> None:
            super().__init__(context)
            contexts.append(self.context)

    loop = loop_of(Keep)
    things = list(reachable(contexts[0]))
    assert contexts[0].kv in things
    assert not [one for one in things if hasattr(one, "take") or hasattr(one, "forget") or hasattr(one, "extend")]
    assert contexts[0].kv_cache is contexts[0].kv
    assert isinstance(loop.scheduler.context.kv_cache, KVCacheManager)  # which the mechanics have


@pytest.mark.parametrize(
    ("name", "take"),
    [
        ("cache", lambda context: context.kv_cache),
        ("pool", lambda context: context.kv_cache.pool),
        ("original", lambda context: context),
    ],
)
def test_a_policy_that_keeps_the_manager_is_refused(name: str, take: Callable[[Any], Any]) -> None:
    class Taker(Arrival):
        def __init__(self, context: SchedulerContext[NoOptions]) -> None:
            super().__init__(context)
            setattr(self, name, take(context))

    with pytest.raises(PluginBroken) as failed:
        loop_of(Taker)
    assert str(failed.value) == (
        f"scheduler 'under test' could not be made: its policy keeps the KV cache's manager as self.{name}, and only a "
        "whole Scheduler may write to the cache: context.kv tells a policy what is in it"
    )


def test_a_victim_of_none_does_not_stop_the_engine() -> None:
    class Nobody(Arrival):
        def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> None:
            return None

    loop = loop_of(Nobody, num_blocks=4)
    loop.add(*(make_request(number, 7, max_tokens=8) for number in range(3)))
    loop.run(max_steps=200)
    assert set(loop.finished.values()) == {FinishReason.LENGTH}
    assert loop.scheduler.make_stats().preemptions > 0

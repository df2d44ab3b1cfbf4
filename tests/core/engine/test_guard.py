"""A scheduler that raises, leaves or answers with something else is named, whatever it was asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from enginebay.engine.guard import GuardedScheduler
from enginebay.errors import EnginebayError, EngineDead, InvalidRequest, PolicyFailed, RequestError, WorkerLost
from enginebay.messages import (
    Committed,
    FinishReason,
    GrammarOutput,
    NewRequest,
    RunningRequest,
    SamplingParams,
    SchedulerOutput,
    SchedulerStats,
)
from support.faults import throws
from support.leaving import PAST_EXCEPTION, NoWords, in_a_thread

NAME = "scheduler 's' 1.0"

CALLS: dict[str, tuple[Any, ...]] = {
    "add_request": (None,),
    "finish_requests": ((), None),
    "schedule": (),
    "get_grammar_bitmask": (None,),
    "update_from_output": (None, None),
    "has_requests": (),
    "make_stats": (),
    "on_step": (None,),
}


class Scripted:
    """Answers every method by the same function."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._answer()


def guarded(answer: Any) -> GuardedScheduler:
    return GuardedScheduler(lambda: Scripted(answer), name=NAME)  # type: ignore[arg-type,return-value]  # it is broken


@pytest.mark.parametrize("error", [KeyError("mine"), *(kind("mine") for kind in PAST_EXCEPTION)])
@pytest.mark.parametrize("method", CALLS)
def test_what_it_raises_is_told_with_its_name(method: str, error: BaseException) -> None:
    caught = in_a_thread(lambda: getattr(guarded(lambda: throws(error)), method)(*CALLS[method]))
    assert isinstance(caught, PolicyFailed)
    assert str(caught) == f"{NAME}: {method}() raised {type(error).__name__}: {error}"


@pytest.mark.parametrize("error", [PolicyFailed("policy p: key() raised"), KeyboardInterrupt()])
@pytest.mark.parametrize("method", CALLS)
def test_what_names_a_policy_and_interrupts_pass(method: str, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        getattr(guarded(lambda: throws(error)), method)(*CALLS[method])
    assert caught.value is error


@pytest.mark.parametrize("error", [InvalidRequest("bad"), WorkerLost("rank 0 gone"), EngineDead("the engine stopped")])
@pytest.mark.parametrize("method", CALLS)
def test_our_errors_are_its_own_too_but_for_a_refusal(method: str, error: EnginebayError) -> None:
    refuses = method == "add_request" and isinstance(error, RequestError)
    with pytest.raises(type(error) if refuses else PolicyFailed) as caught:
        getattr(guarded(lambda: throws(error)), method)(*CALLS[method])
    if not refuses:
        assert str(caught.value) == f"{NAME}: {method}() raised {type(error).__name__}: {error}"


@pytest.mark.parametrize("value", [None, "1", 1.0, True, np.int64(1), throws])
@pytest.mark.parametrize("field", SchedulerStats.__struct_fields__)
def test_statistics_that_are_no_integers(field: str, value: Any) -> None:
    with pytest.raises(PolicyFailed, match=f"^{re.escape(NAME)} returned .*{field}=.* from make_stats: its fields are"):
        guarded(lambda: SchedulerStats(**{field: value})).make_stats()


def test_an_error_without_words_still_says_who_and_where() -> None:
    with pytest.raises(PolicyFailed) as caught:
        guarded(lambda: throws(NoWords())).schedule()
    assert str(caught.value) == f"{NAME}: schedule() raised NoWords: (its text cannot be had)"
    with pytest.raises(PolicyFailed) as caught:
        guarded(lambda: SchedulerOutput(step=0, num_scheduled_tokens={"a": NoWords()})).schedule()  # type: ignore[dict-item]  # it is broken
    assert str(caught.value).startswith(f"{NAME} scheduled a NoWords that cannot be shown tokens of request 'a'; ")


def test_an_answer_that_is_neither_true_nor_false() -> None:
    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    with pytest.raises(PolicyFailed) as caught:
        guarded(Neither).has_requests()
    assert str(caught.value) == f"{NAME}: the answer of has_requests() raised ValueError: ambiguous"


FIGURES = {"num_running", "num_waiting", "num_blocks", "num_free_blocks", "num_cached_blocks"}
"""How it stands now; whatever else ``SchedulerStats`` may get counts since the start."""


def test_every_counter_goes_on_when_a_fresh_scheduler_takes_the_place() -> None:
    fields = SchedulerStats.__struct_fields__
    scheduler = guarded(lambda: SchedulerStats(**dict.fromkeys(fields, 3)))
    scheduler.renew()
    scheduler.renew()
    stats = scheduler.make_stats()
    assert {name: getattr(stats, name) for name in fields} == {name: 3 if name in FIGURES else 9 for name in fields}


@pytest.mark.parametrize(
    ("method", "expected"),
    [("schedule", "SchedulerOutput"), ("get_grammar_bitmask", "GrammarOutput"), ("make_stats", "SchedulerStats")],
)
def test_an_answer_of_another_type(method: str, expected: str) -> None:
    with pytest.raises(PolicyFailed) as caught:
        getattr(guarded(lambda: 7), method)(*CALLS[method])
    assert str(caught.value) == f"{NAME} returned int from {method}, and must return {expected}"


def test_schedule_may_not_answer_none() -> None:
    with pytest.raises(PolicyFailed, match=r"^scheduler 's' 1.0 returned NoneType from schedule, and must return Sch"):
        guarded(lambda: None).schedule()


def test_a_grammar_may_be_none() -> None:
    assert guarded(lambda: None).get_grammar_bitmask(SchedulerOutput(step=0)) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"new": None}, "scheduled a step whose 'new' is not a tuple of NewRequest"),
        ({"new": ("a",)}, "scheduled a step whose 'new' is not a tuple of NewRequest"),
        ({"running": [RunningRequest(request_id="a", num_computed_tokens=0)]}, "'running' is not a tuple of Running"),
        (
            {"running": (RunningRequest(request_id="a", num_computed_tokens=0), "a")},
            "scheduled a step whose 'running' is not a tuple of RunningRequest",
        ),
        ({"finished": ("a", 7)}, "scheduled a step whose 'finished' is not a tuple of str"),
        ({"finished": (7,)}, "scheduled a step whose 'finished' is not a tuple of str"),
        ({"preempted": "abc"}, "scheduled a step whose 'preempted' is not a tuple of str"),
        ({"num_scheduled_tokens": None}, "scheduled a step whose 'num_scheduled_tokens' is no dict"),
        ({"num_scheduled_tokens": {"a": 0}}, "scheduled 0 tokens of request 'a'; a request that runs has an integer"),
        ({"num_scheduled_tokens": {"a": -1}}, "scheduled -1 tokens of request 'a'"),
        ({"num_scheduled_tokens": {"a": 1.0}}, "scheduled 1.0 tokens of request 'a'"),
        ({"num_scheduled_tokens": {"a": True}}, "scheduled True tokens of request 'a'"),
        ({"num_scheduled_tokens": {7: 1}}, "scheduled 1 tokens of request 7"),
    ],
)
def test_a_schedule_whose_fields_are_something_else(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyFailed) as caught:
        guarded(lambda: SchedulerOutput(step=0, **fields)).schedule()
    assert message in str(caught.value)
    assert str(caught.value).startswith(NAME)


class Unhashable(type):
    """A class that cannot stand in a set."""

    __hash__ = None  # type: ignore[assignment]  # a stranger's


class OddText(str, metaclass=Unhashable): ...


class OddCounts(dict[str, int]):
    def values(self) -> Any:
        raise ValueError("mine")


@pytest.mark.parametrize("fields", [{"finished": (OddText("a"),)}, {"num_scheduled_tokens": OddCounts(a=1)}])
def test_what_a_look_at_a_schedule_raises_is_the_scheduler_s(fields: dict[str, Any]) -> None:
    with pytest.raises(PolicyFailed, match=rf"^{NAME}: a look at what schedule\(\) returned raised "):
        guarded(lambda: SchedulerOutput(step=0, **fields)).schedule()


def test_a_subclass_is_as_good() -> None:
    class Id(str):
        __slots__ = ()

    scheduled = SchedulerOutput(step=0, constrained=(Id("a"), "b"), num_scheduled_tokens={Id("c"): 1, "d": 2})
    assert guarded(lambda: scheduled).schedule() is scheduled


def begun(*request_ids: str) -> SchedulerOutput:
    """A step in which these begin, and draw under masks."""
    new = [
        NewRequest(
            request_id=one,
            token_ids=(1,),
            num_prompt_tokens=1,
            params=SamplingParams(),
            seed=0,
            block_ids=((0,),),
            num_computed_tokens=0,
        )
        for one in request_ids
    ]
    counts = dict.fromkeys(request_ids, 1)
    return SchedulerOutput(step=0, new=tuple(new), num_scheduled_tokens=counts, constrained=request_ids)


class Answers:
    """A scheduler that answers what stands in these fields."""

    def __init__(self) -> None:
        self.scheduled = begun("a", "b")
        self.grammar = GrammarOutput(request_ids=("a",), bitmask=b"\xff" * 4, words_per_row=1)
        self.guarded = GuardedScheduler(lambda: self, name=NAME)  # type: ignore[arg-type,return-value]  # half of one

    def schedule(self) -> SchedulerOutput:
        return self.scheduled

    def get_grammar_bitmask(self, scheduled: SchedulerOutput) -> GrammarOutput:
        return self.grammar

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None: ...

    def update_from_output(self, scheduled: SchedulerOutput, committed: Committed) -> None: ...


def test_one_that_has_ended_needs_no_mask() -> None:
    answers = Answers()
    scheduled = answers.guarded.schedule()
    with pytest.raises(PolicyFailed, match=rf"^{NAME} returned from get_grammar_bitmask 0 masks for request 'b'"):
        answers.guarded.get_grammar_bitmask(scheduled)
    answers.guarded.finish_requests(["b"], FinishReason.ABORT)
    assert answers.guarded.get_grammar_bitmask(scheduled) is answers.grammar


def test_an_end_is_told_once() -> None:
    answers = Answers()
    answers.guarded.schedule()
    answers.guarded.update_from_output(answers.scheduled, Committed(finished={"a": FinishReason.STOP}))
    answers.scheduled = SchedulerOutput(step=1, finished=("a",))
    answers.guarded.schedule()
    with pytest.raises(PolicyFailed, match=rf"^{NAME} scheduled a step in which request 'a' has ended, which the wor"):
        answers.guarded.schedule()


def test_an_end_that_is_never_told() -> None:
    answers = Answers()
    answers.guarded.schedule()
    held = SchedulerOutput(step=1)
    answers.guarded.finish_requests(["b", "never begun"], FinishReason.ABORT)
    answers.scheduled = held
    for _ in range(2000):  # that is no step: a scheduler may hold its requests back
        answers.guarded.schedule()
    answers.scheduled = msgspec.structs.replace(held, num_scheduled_tokens={"a": 1})
    for _ in range(1000):
        answers.guarded.schedule()
    with pytest.raises(PolicyFailed, match=rf"^{NAME} has drawn up 1000 steps since request 'b' ended"):
        answers.guarded.schedule()

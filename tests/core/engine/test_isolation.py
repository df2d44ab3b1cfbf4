"""A request that workers die of: it is found with three deaths and ends alone, and no other has lost a token."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from enginebay.errors import WorkerLost
from enginebay.messages import Envelope, ExecuteModel, FinishReason, Replies
from enginebay.status.restarts import RestartRules
from enginebay.transport import decode_call
from support.mortal import DEPTHS, EXPECTED, PROMPTS, Mortal, answered

CONVICTED = (
    "the workers were lost each of the three times that it ran, the last time alone: "
    "rank 0: it ended before it answered"
)


def poison(engine: Mortal, *request_ids: str) -> None:
    """The worker dies of each step that one of these is in."""
    submit = engine.executor.submit

    def dying(envelope: Envelope) -> Future[Replies]:
        call = decode_call(envelope.payload)
        if isinstance(call, ExecuteModel) and set(call.scheduler_output.num_scheduled_tokens) & set(request_ids):
            return answered(engine, envelope)
        return submit(envelope)

    engine.executor.submit = dying  # type: ignore[method-assign]  # a worker that dies of a request


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("guilty", PROMPTS)
@pytest.mark.parametrize("budget", [8, 64])
def test_it_ends_alone_after_three_deaths(guilty: str, depth: int, budget: int) -> None:  # R3
    engine = Mortal(depth, rules=RestartRules(), max_num_batched_tokens=budget)
    poison(engine, guilty)
    engine.run()
    engine.check_ends({guilty})
    assert engine.last[guilty].error == CONVICTED
    assert engine.tokens.get(guilty, []) == []
    assert engine.incarnations == 1 + 3


def test_one_that_becomes_deadly_later_keeps_what_it_has() -> None:
    engine = Mortal(rules=RestartRules())
    while len(engine.tokens.get("b", ())) < 2:
        engine.step()
    poison(engine, "b")
    engine.run()
    engine.check_ends({"b"})
    assert engine.tokens["b"] == EXPECTED["b"][:2]


def test_two_of_them_are_both_found() -> None:
    engine = Mortal(max_num_batched_tokens=64)
    poison(engine, "a", "b")
    engine.run()
    engine.check_ends({"a", "b"})
    assert engine.incarnations == 1 + 5


def test_what_comes_while_one_runs_alone_waits_for_its_turn() -> None:
    engine = Mortal(max_num_batched_tokens=64)
    poison(engine, "a")
    while engine.core._rebirth.isolation.alone is None:
        engine.step()
    engine.add("late", "say:xyz", max_tokens=9)
    steps = len(engine.seen)
    engine.run()
    assert engine.texts["late"] == "xyz"
    first = next(output for output in engine.seen[steps:] if "late" in output.num_scheduled_tokens)
    assert "a" not in first.num_scheduled_tokens
    engine.check_ends = lambda convicted: None  # type: ignore[method-assign]  # it knows nothing of the late one
    assert (engine.last["a"].error, engine.texts["b"], engine.texts["c"]) == (CONVICTED, "mno", "pqrstu")


def test_a_suspect_that_is_aborted_holds_up_nobody() -> None:
    engine = Mortal(max_num_batched_tokens=64)
    poison(engine, "a")
    while engine.core._rebirth.isolation.alone is None:
        engine.step()
    assert engine.core._rebirth.isolation.alone == "a"
    engine.core.abort(["a"])
    engine.run()
    assert engine.last["a"].finish_reason is FinishReason.ABORT
    assert (engine.texts["b"], engine.texts["c"]) == ("mno", "pqrstu")
    assert engine.incarnations == 1 + 2


def test_what_a_convict_has_cost_is_forgiven_once_others_get_tokens() -> None:
    """Any number of such requests, one after the other, does not spend the budget."""
    engine = Mortal(rules=RestartRules(), requests={"c": PROMPTS["c"]})
    poison(engine, *map(str, range(10)))
    for number in range(10):
        engine.add(str(number), "die", max_tokens=4)
        engine.add(f"well {number}", "say:well", max_tokens=9)
        engine.run()
        assert (engine.last[str(number)].error, engine.texts[f"well {number}"]) == (CONVICTED, "well")
    assert engine.incarnations == 1 + 30


def test_what_a_convict_leaves_behind_is_no_open_question() -> None:
    engine = Mortal(requests={"a": PROMPTS["a"]})
    poison(engine, "a")
    engine.run()
    assert engine.last["a"].error == CONVICTED
    assert not engine.core._rebirth.isolation.undecided


def test_where_nobody_gets_a_token_the_workers_are_at_fault_and_the_budget_ends() -> None:
    engine = Mortal(rules=RestartRules())
    poison(engine, *PROMPTS)
    with pytest.raises(WorkerLost, match="more than 5 restarts within 600 s"):
        engine.run()
    assert engine.incarnations == 1 + 5


def test_without_a_death_no_step_is_told_of() -> None:
    engine = Mortal()
    told: list[Any] = []
    isolation = engine.core._rebirth.isolation
    isolation.committed = told.append  # type: ignore[method-assign]  # to see that it is not asked
    isolation.is_over = lambda: told.append("look") or False  # type: ignore[method-assign,func-returns-value]  # likewise
    engine.run()
    assert told == []
    assert not isolation.alert

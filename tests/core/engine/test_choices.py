"""A request for several choices: a row each, one id for the client, and one end for each of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from enginebay.engine.admission.admit import Ask
from enginebay.errors import DuplicateRequest, RequestTooLong
from enginebay.interfaces import NoOptions
from enginebay.messages import EngineRequest, FinishReason, SamplingParams, Usage
from enginebay.scheduling import MechanicsScheduler
from support.fake_engine import EOS, engine_of


def hot(**more: Any) -> dict[str, Any]:
    return {"temperature": 1.0, "max_tokens": 9, **more}


def test_each_choice_is_drawn_answered_and_ended() -> None:
    engine = engine_of()
    engine.add("a", "say:no %", **hot(n=3))
    engine.add("b", "say:one", **hot())
    engine.run()
    assert engine.texts == {"a": "no 0", "a/1": "no 1", "a/2": "no 2", "b": "one"}
    assert {last.request_id for last in engine.last.values()} == {"a", "b"}
    assert [engine.last[name].choice for name in ("a", "a/1", "a/2")] == [0, 1, 2]
    assert all(tokens[-1] == EOS for tokens in engine.tokens.values())
    assert engine.kv.num_free_blocks == 64


def test_the_prompt_counts_once() -> None:
    engine = engine_of()
    engine.add("a", "say:no %", **hot(n=3))
    engine.run()
    usages = [engine.last[name].usage for name in ("a", "a/1", "a/2")]
    assert [usage and (usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(8, 5), (0, 5), (0, 5)]
    assert usages[1] == Usage(completion_tokens=5)


def test_runners_and_schedulers_see_requests_of_their_own() -> None:
    engine = engine_of()
    engine.add("a", "say:no %", **hot(n=3, seed=5, prompt_logprobs=1))
    engine.step()
    engine.step()
    first, then = engine.executor.steps
    assert [(new.request_id, new.choice, new.seed) for new in first.new] == [("a#0", 0, 5)]
    assert [(new.request_id, new.choice, new.seed) for new in then.new] == [("a#1", 1, 5), ("a#2", 2, 5)]
    assert [new.params.prompt_logprobs for new in (*first.new, *then.new)] == [1, None, None]
    assert [new.num_computed_tokens for new in (*first.new, *then.new)] == [0, 4, 4]  # a block of the prompt is shared
    rows = engine.core._requests.ledger.of_client("a")
    assert [(row.parent_id, row.client_id, row.arrival_number) for row in rows] == [
        ("a", "a", 0),
        ("a", "a", 1),
        ("a", "a", 2),
    ]


def test_a_drawn_seed_is_the_same_for_all_choices() -> None:
    engine = engine_of()
    engine.add("a", **hot(n=4))
    engine.run()
    seeds = [new.seed for step in engine.executor.steps for new in step.new]
    assert len(seeds) == 4
    assert len(set(seeds)) == 1


def test_an_abort_ends_all_that_have_not_ended() -> None:  # E1, E6
    engine = engine_of()
    engine.add("a", "say:%" + "x" * 8, **hot(n=3, max_tokens=5, stop=("1xx",)))
    for _ in range(4):  # the first of them for the first choice alone
        engine.step()
    assert list(engine.last) == ["a/1"]
    engine.core.abort(["a", "a#0", "nobody"])
    engine.step()
    assert {name: last.finish_reason for name, last in engine.last.items()} == {
        "a/1": FinishReason.STOP,
        "a": FinishReason.ABORT,
        "a/2": FinishReason.ABORT,
    }
    assert engine.kv.num_free_blocks == 64
    assert not engine.core._requests.ledger.of_client("a")


def test_the_id_of_a_choice_is_nobodys_to_abort() -> None:
    engine = engine_of()
    engine.add("a", "say:%", **hot(n=2))
    engine.core.abort(["a#0", "a#1"])
    engine.run()
    assert engine.texts == {"a": "0", "a/1": "1"}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("a", 2), ("a", 1), "request id 'a' is in use by an unfinished request: choose another, or abort that one"),
        (("a", 1), ("a", 2), "request id 'a' is in use by an unfinished request: choose another, or abort that one"),
        (("a", 2), ("a", 3), "request id 'a' is in use by an unfinished request: choose another, or abort that one"),
        (
            ("a", 2),
            ("a#1", 1),
            "request id 'a#1' is in use by choice 1 of the unfinished request 'a': choose another, or abort that one",
        ),
        (
            ("a#1", 1),
            ("a", 2),
            (
                "request id 'a#1', which 2 choices of 'a' need, is in use by an unfinished request: choose another, or "
                "abort that one"
            ),
        ),
        (
            ("a#1", 2),
            ("a", 2),
            (
                "request id 'a#1', which 2 choices of 'a' need, is in use by an unfinished request: choose another, or "
                "abort that one"
            ),
        ),
    ],
)
def test_no_two_rows_share_an_id(first: tuple[str, int], second: tuple[str, int], message: str) -> None:  # E1
    engine = engine_of()
    engine.add(first[0], "say:%", **hot(n=first[1]))
    with pytest.raises(DuplicateRequest) as caught:
        engine.add(second[0], "say:%", **hot(n=second[1]))
    assert (str(caught.value), caught.value.param) == (message, "request_id")
    engine.run()
    assert len(engine.last) == first[1]
    engine.tokens.clear()
    engine.last.clear()
    engine.add(second[0], "say:%", **hot(n=second[1]))  # it is free now
    engine.run()
    assert len(engine.last) == second[1]


def test_a_deadline_ends_each_choice() -> None:
    engine = engine_of(request_timeout=1e-9)
    engine.add("a", **hot(n=3))
    engine.step()
    assert [(last.choice, last.finish_reason, last.error) for last in engine.last.values()] == [
        (choice, FinishReason.ERROR, "deadline") for choice in range(3)
    ]


def test_a_fault_of_one_choice_is_its_own() -> None:
    engine = engine_of()
    engine.executor.faults["a#1"] = "logits are NaN"
    engine.add("a", "say:no %", **hot(n=3))
    engine.run()
    assert [engine.last[name].error for name in ("a", "a/1", "a/2")] == [None, "logits are NaN", None]
    assert engine.texts["a/2"] == "no 2"


def test_choices_that_a_scheduler_refuses_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    add = MechanicsScheduler.add_request

    def picky(self: MechanicsScheduler[NoOptions], request: EngineRequest) -> None:
        if request.choice == 2:
            raise RequestTooLong("two are enough", param="n")
        add(self, request)

    monkeypatch.setattr(MechanicsScheduler, "add_request", picky)
    with pytest.raises(RequestTooLong, match="two are enough"):
        engine.add("a", **hot(n=3))
    assert engine.core.stats().unfinished == 0
    assert engine.core.stats().scheduler.num_waiting == 0
    engine.add("a", "say:%", **hot(n=2))
    engine.run()
    assert engine.texts == {"a": "0", "a/1": "1"}


def test_choices_survive_a_void() -> None:
    engine = engine_of(max_num_batched_tokens=8)
    engine.executor.before = lambda output: setattr(
        engine.executor, "reply_generation", 77 if output.step in (1, 4) else None
    )
    engine.add("a", "a longer prompt, say:no %", **hot(n=3))
    engine.run()
    assert engine.texts == {"a": "no 0", "a/1": "no 1", "a/2": "no 2"}
    seen = {(new.request_id, new.choice) for step in engine.executor.steps for new in step.new}
    assert seen == {("a#0", 0), ("a#1", 1), ("a#2", 2)}


def test_choices_share_what_is_cached() -> None:
    engine = engine_of(max_num_seqs=1)
    engine.add("a", "a longer prompt, say:no %", **hot(n=3))
    engine.run()
    assert engine.core.stats().scheduler.prefix_hits == 2 * 24
    assert [engine.last[name].usage.cached_tokens for name in ("a", "a/1")] == [0, 0]  # type: ignore[union-attr]  # ended


def test_the_engines_end_is_told_to_each_choice() -> None:
    engine = engine_of()
    engine.core.add_request(Ask(request_id="a", prompt_token_ids=(1,), params=SamplingParams(n=2, temperature=1.0)))
    engine.core.stop()
    assert [(s.request_id, s.finish_reason) for s in engine.hooks.summaries] == [
        ("a#0", FinishReason.ABORT),
        ("a#1", FinishReason.ABORT),
    ]


def test_a_scheduler_that_forgets_the_choice_fails_those_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole scheduler of API 1.0 does: equal draws must not pass for choices."""
    add = MechanicsScheduler.add_request

    def forgets(self: MechanicsScheduler[NoOptions], request: EngineRequest) -> None:
        add(self, msgspec.structs.replace(request, choice=0))

    monkeypatch.setattr(MechanicsScheduler, "add_request", forgets)
    engine = engine_of()
    engine.add("a", "say:no %", **hot(n=2))
    engine.add("b", "say:one")
    engine.run()
    assert engine.texts == {"a": "no 0", "a/1": "", "b": "one"}
    assert engine.last["a/1"].error == (
        "the scheduler does not tell the runner which choice it draws for: ask for one choice (n = 1)"
    )

"""Moves that go wrong, or that nobody wished for: deadly requests, groups that end, refusals, drains and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.engine.death import Death
from enginebay.errors import EngineAsleep, StartFailed, WorkerLost
from enginebay.messages import Drain, FinishReason, RestartWorkers
from enginebay.status.restarts import RestartRules
from support.moving import MakeHand, busy, expected
from support.spans import recorded
from support.traces import recoveries, written


@pytest.mark.parametrize("guilty", ["r0", "r3", "r7"])
def test_what_workers_die_of_is_found_with_three_deaths_of_all_groups(hand: MakeHand, guilty: str) -> None:  # R3
    three = hand(3, rules=RestartRules())
    busy(three, 9)
    three.poison.add(guilty)
    three.run()
    three.check(guilty)
    assert sum(three.deaths) == 3
    assert sorted(three.deaths) == [0, 1, 2], "once where it was, and where it went until it was known"
    said = {one.error for one in three.sinks[guilty].outputs if one.error}
    assert any("the workers were lost each of the three times that it ran, the last time alone" in one for one in said)


def test_any_number_of_such_requests_spends_no_budget_of_any_group(hand: MakeHand) -> None:  # R3
    two = hand(rules=RestartRules(per_slot=3, per_engine=1000))
    for number in range(6):
        two.poison = {f"bad{number}"}
        for name, group in ((f"bad{number}", 0), (f"good{number}", 1), (f"better{number}", 1)):
            two.set._places.rest(1 - group, True, "the test")
            two.ask(name, "say:words")
            two.set._places.rest(1 - group, False, "the test")
            two.run()
    two.check(*(f"bad{number}" for number in range(6)))
    assert two.deaths == [6, 12]


def test_a_group_that_ends_gives_up_what_others_can_do(hand: MakeHand) -> None:
    two = hand(rules=RestartRules(per_slot=1, per_engine=100))
    busy(two)
    for _ in range(2):
        two.turn(0)
        two.ask("more", "say:more") if "more" not in two.asked else None
        two.doomed.add(0)
        while 0 in two.doomed:
            if not two.turn(0):
                two.ask("again", "say:again")
    two.run()
    two.check()
    assert isinstance(two.engines[0].core.death(), WorkerLost)
    assert two.set.loads == (None, 0)


def test_what_a_living_worker_fails_takes_no_other_group_along(hand: MakeHand) -> None:
    two = hand(max_num_seqs=1)
    for number in range(4):
        two.ask(f"r{number}", f"say:answer {number}")
    two.engines[0].fail(set(range(100)))
    two.run()
    two.check_empty()
    assert two.engines[0].core.death() is not None
    assert two.engines[1].core.death() is None
    assert [type(error).__name__ for error in two.sinks["r0"].errors] == ["EngineDead"]
    assert [two.sinks[f"r{number}"].tokens for number in (1, 2, 3)] == [
        expected(f"say:answer {number}", 9) for number in (1, 2, 3)
    ]


def test_one_that_is_refused_goes_to_a_third_group_or_home(hand: MakeHand) -> None:
    three = hand(3)
    three.ask("a", "say:a long answer", 20)
    three.turn(0)
    three.doomed.add(0)
    three.turn(0)
    assert three.group_of("a") == 1
    three.engines[1].core.life.void = "they are gone"
    three.turn(1)
    assert three.group_of("a") == 2
    three.engines[2].core.life.void = "they are gone"
    three.turn(2)
    assert three.group_of("a") == 0
    three.run()
    three.check()


def test_one_that_nobody_takes_ends_with_why(hand: MakeHand) -> None:
    two = hand()
    sink = two.ask("a", "say:a long answer", 20)
    two.turn(0)
    two.doomed.add(0)
    two.turn(0)
    for one in two.engines:
        one.core.life.void = "they are gone"
    two.turn(1)
    two.turn(0)
    assert sink.outputs[-1].finish_reason is FinishReason.ERROR
    assert sink.outputs[-1].error == str(
        EngineAsleep("the engine has no weights: they are gone; update the weights, and ask again")
    )
    two.check("a")


def test_an_id_that_is_in_use_by_a_choice_there(hand: MakeHand) -> None:
    """Choices have ids of their own, which may be another request's in another group."""
    two = hand()
    two.ask("x", "say:choice %", n=2, temperature=1.0)
    two.ask("x#0", "say:the other one", 20)
    assert (two.group_of("x"), two.group_of("x#0")) == (0, 1)
    two.turn(0)
    two.turn(1)
    two.doomed.add(0)
    two.run()
    two.check()


def test_the_other_group_dies_with_them_in_its_inbox(hand: MakeHand) -> None:
    two = hand()
    busy(two)
    two.turn(0)
    two.turn(1)
    two.doomed.add(0)
    two.turn(0)
    assert [type(one).__name__ for one in two.loops[1]._inbox][-1] == "Enter"
    two.doomed.add(1)
    two.engines[1].report()
    two.run()
    two.check()
    assert two.engines[1].incarnations > 1


def test_the_other_loop_ends_with_them_in_its_inbox(hand: MakeHand) -> None:
    two = hand()
    busy(two)
    two.turn(0)
    two.doomed.add(0)
    two.turn(0)
    waiting = [name for name in two.asked if two.group_of(name) == 1]
    assert len(waiting) == 6
    two.loops[1]._stopping = True
    moved = [one.moved.request_id for one in two.loops[1]._inbox if type(one).__name__ == "Enter"]
    two.loops[1].run()
    two.run()
    assert moved
    for name in moved:
        prompt, most, n = two.asked[name]
        if n == 1:
            assert two.sinks[name].tokens == expected(prompt, most)


def test_nothing_moves_while_the_engine_drains(hand: MakeHand) -> None:
    """Each group says when its own requests have ended."""
    two = hand()
    busy(two)
    two.turn(0)
    two.turn(1)
    drained = two.set.control(Drain(timeout=1000.0))
    two.doomed.add(0)
    where = {name: two.group_of(name) for name in two.asked}
    two.turn(0)
    assert {name: two.group_of(name) for name in two.asked} == where
    assert not drained.done()
    two.run()
    for loop in two.loops:
        loop.turn()
    two.check()
    assert drained.result(0).facts == {"unfinished": "0"}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_restart_on_purpose_lets_others_go_on(hand: MakeHand, depth: int) -> None:  # R9
    two = hand(depth=depth)
    busy(two)
    for _ in range(5):
        two.turn(0)
        two.turn(1)
    restarted = []

    def meanwhile(group: int) -> None:
        restarted.append(group)
        assert {two.group_of(name) for name in two.asked} <= {None, 1 - group}

    two.in_respawn = meanwhile
    done = two.set.control(RestartWorkers())
    two.loops[0].turn()
    two.loops[1].turn()
    assert restarted == [0, 1]
    assert done.result(0).facts == {"restarted": "2"}
    two.run()
    two.check()


def test_traces_tell_who_went_where(hand: MakeHand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R12
    with recorded(monkeypatch) as spans:
        three = hand(3)
        for number in range(6):
            three.ask(f"r{number}", f"say:answer {number}")
        three.turn(0)
        three.doomed.add(0)
        three.run()
        three.check()
        told = written(spans, tmp_path / "trace.jsonl")
    (trace,) = recoveries(told)
    assert trace.events() == ["lost", "moved", "moved"]
    assert [event.attributes for event in trace.root.events[1:]] == [
        {"enginebay.group": group, "enginebay.recovery.requests_moved": 1} for group in (1, 2)
    ]
    assert trace.root.attributes["enginebay.recovery.requests_moved"] == 2
    assert trace.root.attributes["enginebay.recovery.requests_requeued"] == 0
    ends = [one for one in told if one.name.startswith("text_completion")]
    assert len(ends) == 6
    moved = [one for one in ends if any(event.name == "moved" for event in one.events)]
    assert len(moved) == 2
    for one in moved:
        (event,) = [event for event in one.events if event.name == "moved"]
        group = one.attributes["enginebay.request.last_step.group"]
        assert event.attributes == {"enginebay.group": group, "enginebay.recovery.trace_id": trace.root.trace_id}
        assert (one.attributes["enginebay.request.first_step.group"], group) in [(0, 1), (0, 2)]
        assert trace.root.trace_id in [link.trace_id for link in one.links]
        assert (one.status, one.attributes["enginebay.request.recoveries"]) == ("ok", 1)


def test_a_scheduler_that_goes_on_knows_nothing_of_who_has_left(hand: MakeHand) -> None:
    """Parts that were started to take its parts' place are given up."""
    two = hand()
    busy(two)
    two.turn(0)
    core = two.engines[0].core
    with core._rebirth.meanwhile.on_purpose(core.parts.watch):
        assert {two.group_of(name) for name in two.asked} == {1}
    two.ask("new", "say:new")
    assert two.group_of("new") == 0
    two.run()
    two.check()


def test_one_that_cannot_be_sent_is_where_it_was_and_nowhere_else(hand: MakeHand) -> None:
    two = hand()
    two.ask("a", "say:a long answer", 20)
    two.turn(0)
    two.loops[1]._bell.close()
    two.doomed.add(0)
    two.turn(0)
    assert two.group_of("a") == 0
    two.loops[1]._drain()
    assert not two.loops[1]._readers
    two.run()
    two.check()


def test_one_whose_id_is_in_use_where_it_is_refused_ends_alone(hand: MakeHand) -> None:
    """Its home has died meanwhile, and the only other group has a request of that id, which is well."""
    two = hand(rules=RestartRules(per_slot=1, per_engine=100))
    two.ask("x", "say:choice %", 30, n=2, temperature=1.0)
    two.ask("x#0", "say:the other one", 40)
    two.ask("by", "say:a bystander", 40)
    assert [two.group_of(one) for one in ("x", "x#0", "by")] == [0, 1, 1]
    two.turn(0)
    two.turn(1)
    two.doomed.add(0)
    two.turn(0)
    two.turn(1)  # it is refused
    for _ in range(5):  # it is home again, and not what workers die of
        two.turn(0)
    assert two.group_of("x") == 0
    two.doomed.add(0)
    two.run_until(lambda: two.engines[0].core.death() is not None)
    two.run()
    two.check("x")


def test_what_nobody_else_can_do_stays_until_there_are_workers(
    hand: MakeHand, caplog: pytest.LogCaptureFixture
) -> None:
    """It is offered once, and is not counted as moved."""
    two = hand()
    two.ask("x", "say:choice %", 30, n=2, temperature=1.0)
    two.ask("x#0", "say:the other one", 200)
    two.turn(0)
    two.turn(1)

    def long(group: int) -> None:
        for _ in range(20):
            two.turn(1)
            two.engines[0].watch.meanwhile()

    two.in_respawn = long
    two.doomed.add(0)
    two.turn(0)
    assert [line for line in caplog.messages if "in other groups" in line] == [
        "group 0: 1 request goes on in other groups: 1 in group 1"
    ]
    assert two.engines[0].core._requests.num_moved == 0
    two.run()
    two.check()


@pytest.mark.parametrize("quiet", [False, True])
def test_an_abort_finds_it_in_the_inbox_of_a_group_that_is_dying(hand: MakeHand, quiet: bool) -> None:  # R7
    three = hand(3)
    sink = three.ask("x", "say:a long long answer", 30)
    three.turn(0)
    three.doomed.add(0)
    three.turn(0)
    assert [type(one).__name__ for one in three.loops[1]._inbox] == ["Enter"]
    three.engines[1].core._death = Death.of(WorkerLost("rank 0: gone"))  # it stops its workers now
    if quiet:
        three.set.abort_quietly("x", sink)
    else:
        three.set.abort("x")
    three.run()
    assert [one.finish_reason for one in sink.outputs if one.finish_reason] == [FinishReason.ABORT]
    assert sink.tokens == []
    three.check("x")


@pytest.mark.parametrize("drains", [False, True])
def test_a_death_of_a_command_is_told_to_the_requests_of_its_group(hand: MakeHand, drains: bool) -> None:  # E2
    """The command's answer is one thing, and that its group is no more another."""
    two = hand(rules=RestartRules(per_slot=1, per_engine=100))
    sink = two.ask("x", "say:a long long answer", 30)
    other = two.ask("y", "say:the other long answer", 30)
    two.turn(0)
    two.turn(1)
    if drains:  # then nothing is moved
        two.set.control(Drain(timeout=1000.0))
        two.turn(0)
        two.turn(1)

    def fails() -> None:
        raise StartFailed("no")

    two.engines[0].in_respawn = fails
    answer = two.set.control(RestartWorkers())
    two.run()
    assert isinstance(answer.exception(0), StartFailed)
    assert [type(error) for error in sink.errors] == ([StartFailed] if drains else [])
    assert other.outputs[-1].finish_reason is FinishReason.STOP
    two.check_empty()

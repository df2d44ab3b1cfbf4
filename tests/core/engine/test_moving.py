"""Requests of a group that has lost its workers go on in another: each token comes once, and nothing stays behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebay.engine.commands import Enter
from enginebay.errors import UnknownRequest
from enginebay.messages import FinishReason, Phase, ReadStatus
from support.mortal import Mortal
from support.moving import Hand, MakeHand, busy


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("turns", range(12))
def test_they_go_on_with_the_next_token(hand: MakeHand, turns: int, depth: int) -> None:  # R1
    """Waiting, in prefill, in decode, and with steps in flight: wherever they are, they are moved before a worker is
    started, and end while there is none."""
    two = hand(depth=depth)
    busy(two)
    for _ in range(turns):
        two.turn(0)
    here = [name for name in two.asked if two.group_of(name) == 0]
    two.doomed.add(0)

    def meanwhile(group: int) -> None:
        assert group == 0
        assert {two.group_of(name) for name in two.asked} <= {None, 1}
        while two.turn(1):
            pass

    two.in_respawn = meanwhile
    two.run()
    two.check()
    assert here
    assert two.deaths == [1, 0] or turns == 11
    assert two.engines[0].core.death() is None
    assert sum(one.core.stats().finished for one in two.engines) == 8
    assert sum(one.core.stats().committed_tokens for one in two.engines) == sum(
        len(sink.tokens) for sink in two.sinks.values()
    )


def test_they_stay_where_they_have_gone(hand: MakeHand) -> None:
    two = hand()
    busy(two)
    two.turn(0)
    two.doomed.add(0)
    two.turn(0)
    assert two.engines[0].incarnations == 2
    assert {two.group_of(name) for name in two.asked} == {1}
    two.run()
    two.check()
    assert two.engines[0].core.stats().finished == 0
    assert two.engines[1].core.stats().moved == 2 + 3, "one of them has three choices"
    assert two.set.control(ReadStatus()).result(0).facts["moved"] == "5"


@pytest.mark.parametrize("can_move", [True, False])
def test_a_group_without_workers_runs_nothing_and_holds_nothing(hand: MakeHand, can_move: bool) -> None:
    """What is told of the engine is the sum of its groups, each request counted once, while one has no workers."""
    two = hand()
    busy(two)
    for _ in range(3):
        two.turn(0)
        two.turn(1)
    if not can_move:
        two.engines[1].report()  # and nobody has looked yet
    seen = []

    def meanwhile(group: int) -> None:
        if group == 0:
            here, there = (one.core.stats() for one in two.engines)
            assert (here.scheduler.num_running, here.scheduler.num_waiting) == (0, here.unfinished)
            assert (here.scheduler.num_free_blocks, here.scheduler.num_cached_blocks) == (64, 0)
            assert (here.unfinished == 0) is can_move
            used = 64 - there.scheduler.num_free_blocks
            cached = there.scheduler.num_cached_blocks
            facts = two.set.control(ReadStatus()).result(0).facts
            assert facts["kv_blocks"] == f"{used} of 128 in use, {cached} with cached content"
            assert facts["running"] == str(there.scheduler.num_running)
            assert facts["waiting"] == str(here.unfinished + there.scheduler.num_waiting)
            assert facts["finished"] == str(here.finished + there.finished)
            seen.append(facts)

    two.in_respawn = meanwhile
    two.doomed.add(0)
    two.turn(0)
    assert len(seen) == 1
    two.run()
    two.check()
    done = two.set.control(ReadStatus()).result(0).facts
    assert done["finished"] == str(sum(one.core.stats().finished for one in two.engines)) == "8"


def test_they_wait_where_no_other_group_can_take_them(hand: MakeHand) -> None:
    two = hand()
    busy(two)
    two.turn(0)
    two.turn(1)
    where = {name: two.group_of(name) for name in two.asked}
    two.engines[1].report()  # its worker has ended, and that is not looked at yet
    two.doomed.add(0)
    two.turn(0)
    assert {name: two.group_of(name) for name in two.asked} == where
    two.run()
    two.check()


def test_they_go_as_soon_as_another_group_can_take_them(hand: MakeHand) -> None:
    """Both groups are lost: those of the one go to the other when that is there first."""
    two = hand()
    busy(two)
    two.turn(0)
    two.turn(1)
    two.doomed |= {0, 1}
    lost = []

    def meanwhile(group: int) -> None:
        lost.append(group)
        if group == 0:
            two.turn(1)  # it is lost as well, and reborn before this one is
            two.engines[0].watch.meanwhile()
            assert {two.group_of(name) for name in two.asked} == {1}

    two.in_respawn = meanwhile
    two.turn(0)
    assert lost == [0, 1]
    two.run()
    two.check()


@pytest.mark.parametrize("moment", ["before", "on its way", "after"])
def test_an_abort_finds_it(hand: MakeHand, moment: str) -> None:  # R7
    two = hand()
    sink = two.ask("a", "say:a long answer", 20)
    two.ask("b", "say:another one", 20)
    for _ in range(4):
        two.turn(0)
    two.doomed.add(0)
    if moment == "before":  # it is in the inbox of the group that it leaves
        two.set._clients[0].abort("a")
        commands = list(two.loops[0]._inbox)
        two.loops[0]._inbox.clear()
        two.in_respawn = lambda group: two.loops[0]._inbox.extend(commands)
    two.turn(0)
    assert two.group_of("a") == 1
    if moment == "on its way":
        assert [type(one).__name__ for one in two.loops[1]._inbox][-1] == "Enter"
        two.set.abort("a")
    if moment == "after":
        two.turn(1)
        two.set.abort_quietly("a", sink)
    two.run()
    assert 3 <= len(sink.tokens) < 14
    two.check("a")
    assert sink.outputs[-1].finish_reason is FinishReason.ABORT
    with pytest.raises(UnknownRequest):
        two.set.abort("a")


def test_an_abort_that_is_there_before_it(hand: MakeHand) -> None:  # R7
    """The placement names the other group before the other loop has the request."""
    two = hand()
    sink = two.ask("a", "say:a long answer", 20)
    two.turn(0)
    two.turn(0)
    two.doomed.add(0)
    take = two.set._clients[1].take_over

    def late(enter: Enter) -> bool:
        two.set.abort("a")
        two.set.abort_quietly("a", sink)
        two.loops[1]._drain()
        return take(enter)

    two.set._clients[1].take_over = late  # type: ignore[method-assign]  # the moment
    two.run()
    two.check("a")
    assert sink.outputs[-1].finish_reason is FinishReason.ABORT


def test_an_abort_of_one_that_could_not_leave(hand: MakeHand) -> None:  # R7
    two = hand()
    sink = two.ask("a", "say:a long answer", 20)
    two.turn(0)
    two.doomed.add(0)

    def ended(enter: Enter) -> bool:
        two.set.abort("a")
        two.loops[1]._drain()
        return False

    two.set._clients[1].take_over = ended  # type: ignore[method-assign]  # the moment
    two.turn(0)
    assert two.group_of("a") in (0, None)
    two.run()
    two.check("a")
    assert sink.outputs[-1].finish_reason is FinishReason.ABORT


def test_its_deadline_goes_on_counting(hand: MakeHand) -> None:  # R7
    two = hand()
    late = two.ask("late", "say:a long answer", 20, timeout=30.0)
    two.ask("other", "say:more", 20)
    two.turn(0)
    two.doomed.add(0)
    two.turn(0)
    two.turn(1)
    assert two.group_of("late") == 1
    two.clock.time += 31
    two.run()
    two.check("late")
    assert late.outputs[-1].error == "deadline"


def test_a_deadline_is_told_once_where_a_request_has_come_back(hand: MakeHand) -> None:
    two = hand()
    two.ask("late", "say:a long answer", 20, timeout=30.0)
    for group in (0, 1):
        two.turn(group)
        two.turn(group)
        two.doomed.add(group)
        two.turn(group)
    assert two.group_of("late") == 0
    two.clock.time += 31
    two.run()
    two.check("late")


def test_all_that_was_asked_goes_along(hand: MakeHand) -> None:
    two = hand()
    own = {"tenant": "t", "priority": -3, "cache_salt": "s"}
    two.ask("a", "say:a long answer", 20, temperature=1.0, **own)
    two.turn(0)
    [before] = two.engines[0].core._requests.ledger
    wanted = before.request()
    two.doomed.add(0)
    two.turn(0)
    two.turn(1)
    [row] = two.engines[1].core._requests.ledger
    assert replace(row.request(), committed_token_ids=()) == replace(wanted, committed_token_ids=())
    assert row.recoveries == 1
    two.run()
    two.check()


def test_the_order_of_arrival_holds_among_all(hand: MakeHand) -> None:
    two = hand(max_num_seqs=1)
    for number in range(6):
        two.ask(f"r{number}", f"say:answer {number}")
        two.loops[number % 2]._drain()
    two.turn(1)
    two.doomed.add(0)
    two.turn(0)
    two.loops[1]._drain()
    assert [row.request_id for row in two.engines[1].core._requests.ledger] == [f"r{number}" for number in range(6)]
    two.run()
    two.check()
    ends = [summary.request_id for summary in two.engines[1].hooks.summaries]
    assert ends == ["r1", "r0", "r2", "r3", "r4", "r5"], "r1 ran already"


def test_new_requests_pass_over_a_group_without_workers(hand: MakeHand) -> None:
    two = hand()
    busy(two)
    two.turn(0)
    two.doomed.add(0)
    came = []

    def meanwhile(group: int) -> None:
        for number in range(4):
            two.ask(f"new{number}", f"say:new {number}")
            came.append(two.group_of(f"new{number}"))

    two.in_respawn = meanwhile
    two.turn(0)
    assert came == [1] * 4
    two.ask("back", "say:back")
    assert two.group_of("back") == 0
    two.run()
    two.check()


def test_one_that_was_sent_to_it_all_the_same_goes_on_too(hand: MakeHand) -> None:
    two = hand()
    busy(two)
    two.turn(0)
    two.doomed.add(0)

    def meanwhile(group: int) -> None:
        look, two.set._look = two.set._look, lambda: None  # type: ignore[method-assign]  # who asks has looked before
        two.set._places.rest(0, False, "ill")
        two.set._places.rest(1, True, "ill")
        two.ask("new", "say:new")
        two.set._look = look  # type: ignore[method-assign]  # as it was
        assert two.group_of("new") == 0
        two.engines[0].watch.meanwhile()
        assert two.group_of("new") == 1

    two.in_respawn = meanwhile
    two.run()
    two.check()


def test_new_requests_pass_over_a_group_that_is_late(hand: MakeHand) -> None:
    two = hand()
    roster = two.engines[0].core.parts.roster
    roster._phase = Phase.DEGRADED
    for number in range(3):
        two.ask(f"r{number}", "say:abc")
        assert two.group_of(f"r{number}") == 1
    two.engines[1].core.parts.roster._phase = Phase.DEGRADED
    two.ask("r3", "say:abc")
    assert two.group_of("r3") == 0, "none is in time, and this one has less to do"
    two.run()
    two.check()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["turn", "turn", "turn", "doom", "report", "abort", "ask"]), st.integers(0, 20)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 3), st.integers(1, 2), st.integers(0, 4), ACTIONS)
def test_whatever_befalls_the_groups(count: int, depth: int, seqs: int, actions: list[tuple[str, int]]) -> None:  # R1
    """Losses, aborts and new requests at any moment, also while others have none; nothing is lost or comes twice."""
    groups = Hand(count, depth=depth, max_num_seqs=seqs + 1)
    left = iter(actions)
    aborted: set[str] = set()
    within = 0

    def act(action: str, number: int) -> None:
        nonlocal within
        group = number % count
        if action == "turn" and group not in running:
            running.add(group)
            groups.turn(group)
            running.discard(group)
        elif action == "doom":
            groups.doomed.add(group)
        elif action == "report":
            groups.engines[group].report()
        elif action == "ask" and (name := f"new{number}") not in groups.asked:
            groups.ask(name, f"a prompt of {number}, say:new {number}", n=1 + number % 2, temperature=1.0)
        elif action == "abort":
            name = f"r{number % 6}"
            if groups.group_of(name) is not None:
                groups.set.abort(name)
                aborted.add(name)

    def meanwhile(group: int) -> None:
        running.add(group)
        for _, (action, number) in zip(range(4), left, strict=False):
            act(action, number)

    running: set[int] = set()
    groups.in_respawn = meanwhile
    try:
        busy(groups)
        for action, number in left:
            act(action, number)
        running.clear()
        groups.doomed.clear()
        groups.run()
        ended = {name for name in aborted if groups.sinks[name].outputs[-1].finish_reason is FinishReason.ABORT}
        assert_all(groups, ended)
    finally:
        groups.close()


def assert_all(groups: Hand, aborted: set[str]) -> None:
    """As ``Hand.check``; of a request for several choices, some may have ended by themselves before it was aborted."""
    for name in list(aborted):
        if groups.asked[name][2] > 1:
            del groups.sinks[name]
            aborted.discard(name)
    groups.check(*aborted)


def test_the_engines_are_as_they_are_alone(hand: MakeHand) -> None:
    """One group has nobody to give anything to."""
    engine = Mortal()
    engine.run()
    engine.check_ends()
    assert engine.core.moving.go(None) == {}

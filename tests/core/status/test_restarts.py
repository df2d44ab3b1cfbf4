"""When a worker is started again, when not, and when its resources are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enginebay.messages import Phase
from enginebay.status.reclaim import Finding, Reclaim, Standing, judge
from enginebay.status.restarts import Ending, GiveUp, Restart, RestartRules, Restarts


def _end(
    at: float, *, slot: str = "a", phase: Phase = Phase.READY, sign: str = "signal 9", ready: float | None = 5.0
) -> Ending:
    return Ending(slot=slot, at=at, phase=phase, signature=sign, ready_for=ready)


def test_the_first_restart_follows_at_once_and_each_further_one_later() -> None:  # R5
    restarts = Restarts(RestartRules(per_slot=100, per_engine=100))
    waits = [restarts.after(_end(float(number)), 0.0) for number in range(9)]
    assert [one.after for one in waits if isinstance(one, Restart)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    shorter = Restarts().after(_end(0.0), 1.0)
    assert isinstance(shorter, Restart)


def test_a_good_run_makes_the_past_forgotten() -> None:  # R5
    restarts = Restarts()
    for number in range(4):
        restarts.after(_end(float(number)), 0.0)
    assert restarts.after(_end(700.0, ready=600.0), 0.0) == Restart(after=0.0, number=1)


def test_past_its_budget_a_slot_is_given_up_with_its_history() -> None:  # R5
    restarts = Restarts()
    ends = [restarts.after(_end(float(10 * number)), 0.0) for number in range(6)]
    assert all(isinstance(one, Restart) for one in ends[:5])
    assert ends[5] == GiveUp(
        why="more than 5 restarts within 600 s: a 50 s ago in Ready (signal 9), a 40 s ago in Ready (signal 9), "
        "a 30 s ago in Ready (signal 9), a 20 s ago in Ready (signal 9), a 10 s ago in Ready (signal 9), "
        "a 0 s ago in Ready (signal 9)"
    )


def test_ends_that_are_long_past_do_not_count() -> None:
    restarts = Restarts()
    assert all(isinstance(restarts.after(_end(601.0 * number), 0.0), Restart) for number in range(20))


def test_the_engine_has_a_budget_of_its_own() -> None:
    restarts = Restarts(RestartRules(per_slot=5, per_engine=6))
    ends = [restarts.after(_end(float(number), slot=f"s{number}"), 0.0) for number in range(7)]
    assert [isinstance(one, GiveUp) for one in ends] == [False] * 6 + [True]


def test_a_start_that_fails_twice_the_same_way_is_not_tried_again() -> None:  # R4
    restarts = Restarts()
    first = restarts.after(_end(0.0, phase=Phase.LOADING, sign="ModelError", ready=None), 0.0)
    again = restarts.after(_end(1.0, phase=Phase.LOADING, sign="ModelError", ready=None), 0.0)
    assert isinstance(first, Restart)
    assert again == GiveUp(why="it failed twice in Loading in the same way (ModelError)", at_start=True)


def test_other_failures_of_a_start_are_tried_again() -> None:
    restarts = Restarts()
    for at, phase, sign in ((0.0, Phase.LOADING, "A"), (1.0, Phase.LOADING, "B"), (2.0, Phase.WARMUP, "B")):
        assert isinstance(restarts.after(_end(at, phase=phase, sign=sign, ready=None), 0.0), Restart)
    assert isinstance(restarts.after(_end(3.0, phase=Phase.WARMUP, sign="B", ready=1.0), 0.0), Restart)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 300), st.sampled_from("abc"), st.one_of(st.none(), st.floats(0, 1000))), max_size=60
    )
)
def test_no_more_restarts_than_the_budget_within_any_window(ends: list[tuple[float, str, float | None]]) -> None:
    rules = RestartRules(per_slot=3, per_engine=5, window=100.0, good_run=float("inf"))
    restarts, now, started = Restarts(rules), 0.0, list[tuple[float, str]]()
    for number, (gap, slot, ready) in enumerate(ends):
        now += gap
        decision = restarts.after(_end(now, slot=slot, sign=str(number), ready=ready), 0.5)
        if isinstance(decision, Restart):
            started.append((now, slot))
            assert 0.0 <= decision.after <= 60.0
        for since, _ in started:
            window = [one for one in started if since <= one[0] < since + rules.window]
            assert len(window) <= rules.per_engine
            assert all(sum(one[1] == slot for one in window) <= rules.per_slot for slot in "abc")


FREE = Finding(what="process", verdict=Reclaim.RECLAIMED)
HELD = Finding(what="device memory", verdict=Reclaim.PENDING, reason="512 MiB by pid 7")
DARK = Finding(what="descendants", verdict=Reclaim.UNKNOWN, reason="another pid namespace")


def test_only_proof_frees_a_slot() -> None:  # T14, T15
    assert judge([FREE, FREE], waited=1e9, limit=60.0) == (Standing.FREE, "")
    assert judge([FREE, HELD], waited=1.0, limit=60.0) == (
        Standing.WAITING,
        "device memory: Pending (512 MiB by pid 7)",
    )
    assert judge([], waited=1.0, limit=60.0) == (Standing.WAITING, "nothing of it was looked at")


@given(st.lists(st.sampled_from([FREE, HELD, DARK]), max_size=5), st.floats(0, 1e9), st.floats(0, 1e6))
def test_unknown_never_ages_into_reclaimed(findings: list[Finding], waited: float, limit: float) -> None:
    standing, words = judge(findings, waited=waited, limit=limit)
    proven = bool(findings) and all(one.verdict is Reclaim.RECLAIMED for one in findings)
    assert (standing is Standing.FREE) is proven
    assert bool(words) is not proven
    assert (standing is Standing.QUARANTINED) is (not proven and waited >= limit)


def test_what_is_forgiven_counts_no_more() -> None:
    restarts = Restarts(RestartRules(per_slot=2))
    for turn in range(6):
        ending = Ending(slot="a", at=float(turn), phase=Phase.READY, signature="SIGKILL", ready_for=1.0)
        verdict = restarts.after(ending, 0.0)
        assert isinstance(verdict, Restart)
        assert verdict.number == turn % 2 + 1
        if turn % 2:
            restarts.forgive(["a", "unknown"])


def test_how_many_failed_starts_are_enough_and_how_long_is_waited_is_set() -> None:
    restarts = Restarts(RestartRules(failed_starts=3, longest_wait=1.5))
    verdicts = [
        restarts.after(Ending(slot="a", at=float(turn), phase=Phase.LOADING, signature="ExitCode1"), 0.0)
        for turn in range(3)
    ]
    assert verdicts == [
        Restart(after=0.0, number=1),
        Restart(after=1.0, number=2),
        GiveUp(why="it failed 3 times in Loading in the same way (ExitCode1)", at_start=True),
    ]
    first = Restarts(RestartRules(failed_starts=1))
    assert first.after(Ending(slot="a", at=0.0, phase=Phase.READY, signature="x", ready_for=1.0), 0.0) == Restart(
        after=0.0, number=1
    )
    assert first.after(Ending(slot="a", at=1.0, phase=Phase.LOADING, signature="x"), 0.0) == GiveUp(
        why="it failed once in Loading in the same way (x)", at_start=True
    )
    never = Restarts(RestartRules(longest_wait=0.0))
    waits = [
        never.after(Ending(slot="a", at=float(turn), phase=Phase.READY, signature="x", ready_for=1.0), 0.5)
        for turn in range(3)
    ]
    assert [one.after for one in waits if isinstance(one, Restart)] == [0.0, 0.0, 0.0]

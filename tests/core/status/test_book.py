"""The book of statuses: what is news, what is refused, and what every status says by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebay.messages import Condition, Incarnation, Phase, Slot, Truth, WorkerStatus
from enginebay.status.backoff import BackOff
from enginebay.status.groups import group_status
from support.status import SLOT, Stand, status

READY = Phase.READY


def _get(stand: Stand, inc: str = "a") -> WorkerStatus:
    found = stand.book.get(inc)
    assert found is not None
    return found


def test_first_status() -> None:  # T1
    stand = Stand()
    assert stand.tell(status(Phase.STARTING)) == 1
    (entry,) = stand.book.entries()
    assert entry.record.version == 1
    assert entry.status.started == 1100.0


def test_a_newer_heartbeat_is_no_news() -> None:  # T2
    stand = Stand()
    stand.tell(status(READY, heartbeat=1.0))
    signals = stand.signals
    assert stand.tell(status(READY, heartbeat=2.0), full=True) == 0
    (entry,) = stand.book.entries()
    assert (entry.record.version, entry.status.heartbeat, stand.signals) == (1, 2.0, signals)


def test_transition_times_follow_the_truth_alone() -> None:  # T3
    stand = Stand()
    stand.tell(status(READY))
    stand.now = 110.0
    stand.tell(status(Phase.DEGRADED, message="slow"))
    ready = _get(stand).condition("Ready")
    assert ready is not None
    assert (ready.truth, ready.since) == (Truth.FALSE, 1110.0)
    stand.now = 120.0
    assert stand.tell(status(Phase.DEGRADED, message="slower"), full=True) == 1
    ready = _get(stand).condition("Ready")
    assert ready is not None
    assert ready.since == 1110.0
    assert stand.sink.shown().message == "slower"


def test_an_end_is_the_end() -> None:  # T8
    stand = Stand()
    stand.tell(status(Phase.FAILED, exit_code=1))
    assert not stand.book.set(status(READY, message="I live"))
    assert stand.book.num_illegal == 1
    assert (_get(stand).phase, _get(stand).message) == (Phase.FAILED, "")


def test_an_end_without_an_exit_code_is_a_failure() -> None:  # T9
    stand = Stand()
    stand.book.set(status(READY))
    stand.book.terminate("a")
    stand.book.end("a", asked=True)
    assert (_get(stand).phase, _get(stand).reason) == (Phase.FAILED, "Unknown")


def test_a_known_exit_code_is_kept() -> None:  # T10
    stand = Stand()
    stand.book.set(status(READY))
    stand.book.terminate("a", exit_code=0, reason="Exited")
    stand.book.terminate("a", exit_code=3)
    assert not stand.book.set(replace(_get(stand), exit_code=4))
    stand.book.end("a", asked=True)
    assert (_get(stand).phase, _get(stand).exit_code) == (Phase.SUCCEEDED, 0)


def test_exit_code_0_that_nobody_asked_for_is_a_failure() -> None:
    stand = Stand()
    stand.book.set(status(READY))
    stand.book.terminate("a", exit_code=0)
    stand.book.end("a", asked=False)
    assert _get(stand).phase is Phase.FAILED


def test_stages_behind_the_one_it_died_in_were_not_entered() -> None:  # T11
    stand = Stand()
    for phase in (Phase.STARTING, Phase.INIT_DEVICE):
        stand.book.set(status(phase))
        stand.now += 1
    stand.book.terminate("a", signal=9)
    stand.book.end("a", asked=False)
    stages = _get(stand).stages
    assert [(one.phase, one.ended) for one in stages] == [(Phase.STARTING, 1101.0), (Phase.INIT_DEVICE, None)]


def test_a_group_is_ready_when_all_ranks_are_in_one_generation() -> None:  # T12
    stand = Stand()
    slots = [Slot(group=0, rank=rank) for rank in range(4)]

    def waits_for() -> list[tuple[int, str]]:
        others = [status(READY, inc="z", slot=Slot(group=1, rank=0))]
        found = group_status(slots, [*others, *(one.status for one in stand.book.entries())])
        assert found.ready is (found.waiting_for == ()) is (found.words == "")
        return [(slot.rank, "none" if held is None else str(held.phase)) for slot, held in found.waiting_for]

    assert waits_for() == [(rank, "none") for rank in range(4)]
    for slot in slots[:3]:
        stand.book.set(status(READY, inc=f"a{slot.rank}", slot=slot))
    assert waits_for() == [(3, "none")]
    stand.book.set(status(Phase.LOADING, inc="a3", slot=slots[3]))
    assert waits_for() == [(3, "Loading")]
    stand.book.advance("a3", READY)
    assert waits_for() == []
    stand.book.advance("a2", Phase.DEGRADED)
    assert waits_for() == []  # it is late, and computes
    stand.book.terminate("a1", signal=9)
    assert waits_for() == [(1, "Reclaiming")]
    stand.book.set(status(READY, inc="b1", slot=slots[1]))
    assert waits_for() == [(0, "Ready"), (2, "Degraded"), (3, "Ready")], "they are of the generation before"


def test_what_is_said_of_an_unknown_incarnation_is_ignored() -> None:  # T13
    stand = Stand(owners=("kv",))
    stand.book.set(status(READY))
    assert not stand.book.set_condition("z", Condition(kind="Joined", truth=Truth.TRUE, owner="kv"))
    assert not stand.book.advance("z", Phase.DEGRADED)
    assert not stand.book.terminate("z")
    assert not stand.book.end("z", asked=True)
    assert stand.book.set_condition("a", Condition(kind="Joined", truth=Truth.TRUE, owner="kv"))
    assert not stand.book.set_condition("a", Condition(kind="Joined", truth=Truth.TRUE, owner="nobody"))
    assert [entry.record.version for entry in stand.book.entries()] == [2]


def test_a_status_cannot_move_to_another_slot() -> None:
    stand = Stand()
    stand.book.set(status(READY))
    assert not stand.book.set(status(READY, slot=Slot(group=0, rank=1)))
    assert _get(stand).slot == SLOT


def test_no_status_shows_an_end_beside_a_readiness() -> None:  # T20
    stand = Stand()
    stand.tell(status(READY))
    stand.book.terminate("a", signal=9)
    stand.book.end("a", asked=False)
    stand.sync.tick()
    shown = [(one.status.phase, one.status.condition("Ready")) for one in stand.sink.history]
    assert [(phase, ready.truth) for phase, ready in shown if ready is not None] == [
        (READY, Truth.TRUE),
        (Phase.FAILED, Truth.FALSE),
    ]


def test_finished_is_a_latch() -> None:  # T29
    stand = Stand()
    stand.book.set(status(READY))
    stand.book.end("a", asked=False)
    stand.book.set(replace(_get(stand), message="late"), force=True)
    assert [entry.record.finished for entry in stand.book.entries()] == [True]


def test_ends_that_were_never_told_do_not_pile_up_and_the_last_are_told() -> None:  # T17
    stand = Stand()
    stand.sink.error = OSError("down")
    for number in range(100):
        inc = Incarnation(id=f"i{number}", generation=number)
        stand.book.set(WorkerStatus(slot=SLOT, incarnation=inc, phase=READY))
        stand.book.terminate(inc.id, signal=9)
        stand.book.end(inc.id, asked=False)
        stand.sync.tick()
    assert [one.status.incarnation.id for one in stand.book.entries()] == ["i96", "i97", "i98", "i99"]
    stand.sink.error, stand.now = None, stand.now + 60.0
    stand.sync.tick()
    told = [(one.status.incarnation.id, one.status.phase) for one in stand.sink.history]
    assert told == [(f"i{number}", Phase.FAILED) for number in range(96, 100)]
    assert (stand.book.entries(), stand.sink.records()) == ([], [])


def test_present_is_the_newest_of_each_slot() -> None:
    stand = Stand()
    stand.book.set(status(Phase.TERMINATING, inc="a"))
    stand.book.set(status(READY, inc="c"))
    stand.book.set(status(READY, inc="b"))
    assert [one.incarnation.id for one in stand.book.present().values()] == ["c"]


@given(st.lists(st.sampled_from(list(Phase)), max_size=12))
def test_a_life_goes_forward_and_ends_once(phases: list[Phase]) -> None:
    stand = Stand()
    stand.book.set(status(Phase.PENDING))
    versions, seen = [1], [Phase.PENDING]
    for phase in phases:
        stand.now += 1
        before = stand.book.num_illegal
        accepted = stand.book.set(replace(_get(stand), phase=phase))
        assert accepted is (stand.book.num_illegal == before)
        (entry,) = stand.book.entries()
        assert (entry.record.version > versions[-1]) is (accepted and phase is not seen[-1])
        versions.append(entry.record.version)
        seen.append(entry.status.phase)
        ready = entry.status.condition("Ready")
        assert ready is not None
        assert (ready.truth is Truth.TRUE) is (entry.status.phase is READY)
        times = [time for one in entry.status.stages for time in (one.begun, one.ended) if time is not None]
        assert times == sorted(times)
    ends = [phase for phase in seen if phase.terminal]
    assert len(set(ends)) <= 1
    assert not ends or all(phase is ends[0] for phase in seen[seen.index(ends[0]) :])


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_waits_grow_to_their_limit(failures: int, draw: float) -> None:
    back_off = BackOff(first=1.0, most=60.0)
    wait = back_off.after(failures, draw)
    assert 0.0 <= wait <= 60.0
    assert (wait == 0.0) is (failures == 0)
    assert [back_off.after(number, 0.0) for number in range(8)] == [0, 1, 2, 4, 8, 16, 32, 60]


def test_one_that_lived_until_it_was_told_to_end_has_succeeded() -> None:
    stand = Stand()
    stand.book.set(status(READY))
    stand.book.advance("a", Phase.TERMINATING)
    free = Condition(kind="Reclaimed", truth=Truth.TRUE, reason="Free")
    stand.book.end("a", asked=True, reclaimed=free)
    assert (_get(stand).phase, _get(stand).reason) == (Phase.SUCCEEDED, "Stopped")
    said = _get(stand).condition("Reclaimed")
    assert said is not None
    assert (said.truth, said.reason) == (Truth.TRUE, "Free")


def test_what_comes_too_late_for_one_that_ends_is_no_fault() -> None:
    stand = Stand()
    stand.book.set(status(Phase.LOADING))
    stand.book.terminate("a", signal=9)
    assert not stand.book.advance("a", READY)
    assert not stand.book.advance("a", Phase.TERMINATING)
    assert (_get(stand).phase, stand.book.num_illegal) == (Phase.RECLAIMING, 0)


_WORDS = st.text(max_size=80) | st.text("a\n\x1b\u202e", min_size=60, max_size=1500)
_CONDITION = st.builds(
    Condition, kind=_WORDS, truth=st.sampled_from(list(Truth)), reason=_WORDS, message=_WORDS, owner=_WORDS
)


@given(st.lists(_CONDITION, max_size=4), _WORDS, _WORDS, _CONDITION)
def test_whatever_is_said_is_kept_in_bounded_clean_words(
    conditions: list[Condition], reason: str, message: str, late: Condition
) -> None:
    stand = Stand(owners=(late.owner,))
    said = status(READY, reason=reason, message=message, conditions=tuple(conditions))
    assert stand.book.set(said)
    stand.book.set_condition("a", late)
    kept, version = _get(stand), stand.book.entries()[0].record.version
    words = [kept.reason, *(word for one in kept.conditions for word in (one.kind, one.owner, one.reason))]
    assert all(word.isprintable() and len(word) <= 64 for word in words)
    messages = [kept.message, *(one.message for one in kept.conditions)]
    assert all(word.isprintable() and len(word) <= 1024 for word in messages)
    names = [(one.owner, one.kind) for one in kept.conditions]
    assert names == sorted(set(names))
    assert stand.book.set(kept)
    stand.book.set_condition("a", late)  # the same words find what they said before
    assert stand.book.entries()[0].record.version == version

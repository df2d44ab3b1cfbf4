"""What is asked of several groups: one after the other, put together, and refused while they differ."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from enginebay.engine.control.tensors import AbortTensors, Command, FinishTensors, StartTensors
from enginebay.engine.replicas.gathering import ControlInTurn, end_of_all, for_each_group, merged, summed
from enginebay.engine.replicas.unison import Unison
from enginebay.errors import EngineAsleep, EnginebayError, EngineBusy, EngineDead, InvalidRequest, WorkerFailed
from enginebay.messages import (
    CallWorkers,
    ControlDone,
    Drain,
    ReadStatus,
    Resume,
    Sleep,
    StopProfile,
    UpdateWeights,
    WakeUp,
)
from enginebay.runtime import system_runtime
from support.fake_engine import FakeEngine
from support.groups import PATIENCE, Groups, Sink, ask, until


class Answers:
    """Futures that a test completes, as the groups' ``control``."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.futures: dict[int, Future[ControlDone]] = {}

    def send(self, index: int) -> Future[ControlDone]:
        self.asked.append(index)
        return self.futures.setdefault(index, Future())


def test_what_groups_say_is_put_together() -> None:
    assert merged([{"a": "1", "b": "x"}, {"a": "1", "b": "y", "c": "z"}]) == {
        "a": "1",
        "b": "group 0: x; group 1: y",
        "c": "group 1: z",
    }
    counts = [{"kv": "1 of 64 in use", "n": "2"}, {"kv": "0 of 64 in use", "n": "2"}, {"kv": "9 of 32 in use"}]
    assert merged(counts, counts=("kv", "n")) == {"kv": "10 of 160 in use", "n": "4"}
    assert merged([{"n": "1 x"}, {"n": "1 y"}], [0, 2], ("n",)) == {"n": "group 0: 1 x; group 2: 1 y"}
    one = FakeEngine().core.stats()
    assert summed([one, one]).scheduler.num_blocks == 2 * one.scheduler.num_blocks
    same = [EngineDead("the engine is closed"), EngineDead("the engine is closed")]
    assert str(end_of_all(same)) == "the engine is closed"


def test_a_control_is_done_by_one_group_after_the_other() -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), Sleep(level=1), [0, 2], answers.send)
    assert answers.asked == [0]
    answers.futures[0].set_result(ControlDone(values=(b"a",), facts={"freed": "1 GiB", "level": "1"}))
    assert answers.asked == [0, 1]
    assert not done.done()
    answers.futures[1].set_result(ControlDone(values=(b"b",), facts={"freed": "2 GiB", "level": "1"}))
    assert done.result(0) == ControlDone(
        values=(b"a", b"b"), facts={"freed": "group 0: 1 GiB; group 2: 2 GiB", "level": "1"}
    )


def test_a_refused_control_says_who_has_done_it_already() -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), Sleep(level=1), [0, 2], answers.send)
    answers.futures[0].set_result(ControlDone())
    answers.futures[1].set_exception(InvalidRequest("requests run"))
    with pytest.raises(InvalidRequest, match=r"^group 2 did not sleep, which group 0 did already: requests run$"):
        done.result(0)
    first = Answers()
    done = ControlInTurn(system_runtime(), Sleep(level=1), [0, 1], first.send)
    first.futures[0].set_exception(InvalidRequest("requests run"))
    with pytest.raises(InvalidRequest, match=r"^requests run$"):
        done.result(0)
    assert first.asked == [0]


@pytest.mark.parametrize("error", [WorkerFailed("rank 0 failed", remote_traceback="there"), EngineBusy("requests run")])
def test_whatever_a_group_fails_with_it_is_told_who_has_done_it(error: EnginebayError) -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), UpdateWeights(path="/new"), [0, 1], answers.send)
    answers.futures[0].set_result(ControlDone())
    answers.futures[1].set_exception(error)
    with pytest.raises(type(error)) as caught:
        done.result(0)
    assert str(caught.value) == f"group 1 did not update_weights, which group 0 did already: {error}"
    assert vars(caught.value) == vars(error)


@pytest.mark.parametrize("command", [AbortTensors(update=1), Resume(), StopProfile(), ReadStatus(), Drain()])
def test_what_undoes_or_asks_reaches_the_groups_behind_one_that_cannot(command: Command) -> None:
    answers = Answers()

    def send(index: int) -> Future[ControlDone]:
        if index == 0:
            raise EngineDead("it has ended")
        return answers.send(index)

    done = ControlInTurn(system_runtime(), command, [0, 1, 2], send)
    for index in (1, 2):
        answers.futures[index].set_result(ControlDone())
    with pytest.raises(EngineDead, match=r"^group 0 did not .*, which group 1, 2 did already: it has ended$"):
        done.result(0)


@pytest.mark.parametrize("command", [UpdateWeights(path="/new"), FinishTensors(update=1)])
def test_nothing_is_answered_by_groups_of_different_weights(command: Command) -> None:
    answers, unison = Answers(), Unison()
    done = unison.control(system_runtime(), command, [0, 1], answers.send)
    unison.check()
    answers.futures[0].set_result(ControlDone())
    answers.futures[1].set_exception(EngineBusy("requests run"))
    assert isinstance(done.exception(0), EngineBusy)
    with pytest.raises(EngineAsleep) as caught:
        unison.check()
    assert str(caught.value) == (
        f"the groups of the engine have different weights: {done.exception(0)}; update the weights, and ask again"
    )
    with pytest.raises(EngineAsleep), unison.growing():
        raise AssertionError("never reached")
    first = Answers()
    done = unison.control(system_runtime(), command, [0, 1], first.send)
    first.futures[0].set_exception(EngineBusy("requests run"))
    assert isinstance(done.exception(0), EngineBusy)
    with pytest.raises(EngineAsleep):  # nobody has done that one: it is as before
        unison.check()
    again = Answers()
    done = unison.control(system_runtime(), command, [0, 1], again.send)
    for index in (0, 1):
        again.futures[index].set_result(ControlDone())
    assert done.exception(0) is None
    unison.check()


def test_requests_are_refused_while_groups_differ(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups()
    groups.set._unison._at_odds = "group 1 did not"
    sink = Sink()
    with pytest.raises(EngineAsleep, match="the groups of the engine have different weights: group 1 did not; "):
        groups.set.add_request(ask("a"), sink)
    assert groups.set.loads == (0, 0)
    assert groups.set.control(ReadStatus()).result(PATIENCE).facts["state"] == "groups of different weights"
    groups.set._unison._at_odds = ""
    groups.set.add_request(ask("a"), sink)
    until(sink.ended)
    assert groups.set.control(ReadStatus()).result(PATIENCE).facts["state"] == "ready"


def test_a_group_does_not_start_beside_a_change() -> None:
    answers, unison = Answers(), Unison()
    with unison.growing():
        for command in (Sleep(), WakeUp(), UpdateWeights(path="/new"), StartTensors(update=1)):
            with pytest.raises(EngineBusy, match="has to wait: another group is being started"):
                unison.control(system_runtime(), command, [0], answers.send)
        unison.control(system_runtime(), Drain(), [0], answers.send)
    unison.control(system_runtime(), Sleep(), [1], answers.send)
    answers = Answers()
    unison.control(system_runtime(), Sleep(), [0], answers.send)
    with pytest.raises(EngineBusy, match="no group is started while"), unison.growing():
        raise AssertionError("never reached")


def test_what_only_asks_goes_to_all_at_once() -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), ReadStatus(), [0, 1], answers.send)
    assert answers.asked == [0, 1]
    answers.futures[1].set_result(ControlDone(values=(b"b",)))
    answers.futures[0].set_result(ControlDone(values=(b"a",)))
    assert done.result(0).values == (b"a", b"b")


def test_payloads_rank_by_rank_are_dealt_out() -> None:
    call = CallWorkers(method="x.y", per_rank=(b"0", b"1", b"2", b"3"))
    dealt = for_each_group(call, [2, 2])
    assert [one.per_rank for one in dealt if isinstance(one, CallWorkers)] == [(b"0", b"1"), (b"2", b"3")]
    assert for_each_group(Sleep(), [2, 2]) == [Sleep(), Sleep()]
    with pytest.raises(InvalidRequest) as caught:
        for_each_group(CallWorkers(method="x.y", per_rank=(b"0", b"1")), [2, 2])
    assert str(caught.value) == ("per_rank has 2 payloads, and 2 groups have 4 ranks together: give one for each")

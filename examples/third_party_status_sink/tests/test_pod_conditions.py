"""Workers as conditions of their pod: what is written, what is left alone, and enginebay's ``StatusSinkSuite``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from enginebay_pod_conditions.plugin import PodOptions
from enginebay_pod_conditions.sink import PodConditions
from enginebay_pod_conditions.words import condition_type
from pod_api import THEIRS, PodApi, pod_api

from enginebay.interfaces import StatusConflict, StatusSinkContext
from enginebay.messages import Incarnation, Phase, Slot, StatusRecord, WorkerStatus
from enginebay.testing import StatusSinkSuite

SLOT = Slot(group=0, rank=1, device="cuda:1")
OURS = "workers.enginebay/group-0.rank-1.cuda-1"
MakeSink = Callable[..., PodConditions]


def record(phase: Phase, *, version: int = 1, life: str = "a") -> StatusRecord:
    """A worker's status."""
    status = WorkerStatus(slot=SLOT, incarnation=Incarnation(id=life), phase=phase, reason="Weights", message="37 %")
    return StatusRecord(status=status, version=version)


@pytest.fixture(scope="module")
def server() -> Iterator[PodApi]:
    with pod_api() as api:
        yield api


@pytest.fixture
def api(server: PodApi) -> PodApi:
    """A pod to which nothing has been written."""
    server.reset()
    return server


@pytest.fixture
def make(api: PodApi) -> Iterator[MakeSink]:
    """Makes sinks of that pod."""
    made: list[PodConditions] = []

    def make(wall: float = 1_800_000_000.7, **options: Any) -> PodConditions:
        given = {"pod": "engine-0", "namespace": "models", "uid": "uid-1", "api": api.url, **options}
        made.append(PodConditions(StatusSinkContext(options=PodOptions(**given), engine="one", wall=lambda: wall)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


class TestConformance(StatusSinkSuite):
    """enginebay's own suite, through the installed entry point."""

    name = "pod_conditions"

    @pytest.fixture
    def sink_options(self, api: PodApi) -> Mapping[str, Any]:
        return {"pod": "engine-0", "namespace": "models", "api": api.url}


def test_a_condition_is_for_people_and_programs(api: PodApi, make: MakeSink) -> None:
    make().write(record(Phase.READY), "")
    condition = api.conditions()[OURS]
    line, _, rest = condition.pop("message").partition("\n")
    assert condition == {
        "type": OURS,
        "status": "True",
        "reason": "Ready",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    assert line == "Weights: 37 %"
    assert json.loads(rest)["status"]["incarnation"]["id"] == "a"


def test_the_time_moves_with_the_truth_alone(api: PodApi, make: MakeSink) -> None:
    tag = make().write(record(Phase.LOADING), "")
    tag = make(wall=1_800_000_100).write(record(Phase.WARMUP, version=2), tag)
    assert api.conditions()[OURS]["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    make(wall=1_800_000_100).write(record(Phase.READY, version=3), tag)
    assert api.conditions()[OURS]["lastTransitionTime"] == "2027-01-15T08:01:40Z"


def test_what_others_say_of_the_pod_stays(api: PodApi, make: MakeSink) -> None:
    sink = make()
    sink.write(record(Phase.READY), "")
    sink.remove(SLOT, "a")
    assert api.conditions()["Ready"] == THEIRS
    assert {one["type"] for patch in api.patches for one in patch["status"]["conditions"]} == {OURS}
    assert all(set(patch) == {"metadata", "status"} for patch in api.patches)


def test_nothing_is_ever_deleted(api: PodApi, make: MakeSink) -> None:
    sink = make()
    sink.write(record(Phase.FAILED), "")
    sink.remove(SLOT, "a")
    assert sink.read(SLOT) is None
    assert (api.conditions()[OURS]["status"], api.conditions()[OURS]["reason"]) == ("False", "Empty")
    assert set(api.calls) == {"GET", "PATCH"}


def test_every_patch_names_the_pod_that_was_read(api: PodApi, make: MakeSink) -> None:
    sink = make()
    sink.write(record(Phase.READY), "")
    sink.remove(SLOT, "a")
    assert [patch["metadata"] for patch in api.patches] == [
        {"uid": "uid-1", "resourceVersion": "1"},
        {"uid": "uid-1", "resourceVersion": "2"},
    ]


def test_it_writes_again_when_another_part_of_the_pod_has_changed(api: PodApi, make: MakeSink) -> None:
    api.before_patch += [api.changed, api.changed]
    make().write(record(Phase.READY), "")
    assert api.conditions()[OURS]["status"] == "True"
    assert len(api.patches) == 3


def test_it_gives_up_on_a_pod_that_never_rests(api: PodApi, make: MakeSink) -> None:
    api.before_patch += [api.changed] * 5
    with pytest.raises(OSError, match=r"^pod models/engine-0 changed 5 times while it was written$"):
        make().write(record(Phase.READY), "")
    assert OURS not in api.conditions()


def test_another_pod_of_the_same_name_is_left_alone(api: PodApi, make: MakeSink) -> None:
    bound = make(uid="")
    tag = bound.write(record(Phase.LOADING), "")
    api.reset()
    api.pod["metadata"]["uid"] = "uid-2"
    for sink in (bound, make(uid="uid-1")):
        with pytest.raises(OSError, match=r"^pod models/engine-0 is another one now: nothing is written to it$"):
            sink.write(record(Phase.READY, version=2), tag)
    assert api.patches == []


def test_a_pod_that_becomes_another_one_meanwhile_is_left_alone(api: PodApi, make: MakeSink) -> None:
    api.before_patch.append(lambda: api.pod["metadata"].update(uid="uid-2"))
    with pytest.raises(OSError, match="is another one now"):
        make().write(record(Phase.READY), "")
    assert OURS not in api.conditions()


def test_a_condition_that_somebody_else_has_written_is_a_conflict(api: PodApi, make: MakeSink) -> None:
    tag = make().write(record(Phase.LOADING), "")
    make().write(record(Phase.READY, version=2, life="b"), tag)
    with pytest.raises(StatusConflict) as caught:
        make().write(record(Phase.READY, version=2), tag)
    assert caught.value.held is not None
    assert caught.value.held.record.status.incarnation.id == "b"


def test_a_condition_of_ours_that_says_nothing_is_written_over(api: PodApi, make: MakeSink) -> None:
    for message in (None, "by hand", "by hand\n{}", "by hand\n{"):
        api.pod["status"]["conditions"] = [{"type": OURS, "status": "True", "message": message}]
        sink = make()
        assert (sink.read(SLOT), sink.records()) == (None, [])
        sink.write(record(Phase.LOADING), "")
        assert api.conditions()[OURS]["status"] == "False"


@pytest.mark.parametrize(("status", "words"), [(403, "403 Forbidden"), (404, "404 Not Found"), (500, "500 ")])
def test_a_refusal_is_told_in_one_line(api: PodApi, make: MakeSink, status: int, words: str) -> None:
    sink = make()
    api.fails = [status]
    with pytest.raises(OSError, match=f"^GET pod models/engine-0: {words}") as caught:
        sink.read(SLOT)
    assert "\n" not in str(caught.value)
    assert sink.read(SLOT) is None


def test_an_api_that_is_down_is_told_in_one_line(make: MakeSink) -> None:
    with pytest.raises(OSError, match=r"^GET pod models/engine-0: .*refused") as caught:
        make(api="http://127.0.0.1:9").read(SLOT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda-0", "CUDA:0", "an odd/one?#", "x" * 500, "é"])
def test_a_type_is_one_that_kubernetes_takes(device: str) -> None:
    prefix, _, name = condition_type("workers.enginebay", Slot(group=12, rank=345, device=device)).partition("/")
    assert prefix == "workers.enginebay"
    assert len(name) <= 63
    assert name.replace("-", "").replace(".", "").isalnum()
    assert name.isascii()

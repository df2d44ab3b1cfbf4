"""A worker beside its start and its steps: each call in its turn, and whatever is out of it changes nothing. E7."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.messages import (
    AbortWeightUpdate,
    Ack,
    Call,
    CallExtension,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    ExecuteModel,
    FinishWeightUpdate,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LoadModel,
    ProfileWritten,
    SampleTokens,
    SchedulerOutput,
    SendWeights,
    Shutdown,
    SleepWorker,
    StartWeightUpdate,
    StartWorkerProfile,
    StopWorkerProfile,
    TensorPiece,
    WakeWorker,
    WeightsChunk,
)
from enginebay.worker import Worker
from support.scripted_device import ScriptedDevice
from support.workers import BEHAVIOUR, LOG, output, payload, scripted_host

START: tuple[Call, ...] = (
    InitWorker(),
    InitDevice(),
    LoadModel(),
    DetermineAvailableMemory(),
    InitializeKVCache(num_blocks=7),
    CompileOrWarmUpModel(),
)
STEP = ExecuteModel(scheduler_output=SchedulerOutput(step=0))
CHUNK = WeightsChunk(pieces=(TensorPiece(name="a", dtype="float32", shape=(1,), data=b"1234"),))
LIFE: tuple[Call, ...] = (
    SleepWorker(),
    WakeWorker(),
    StartWeightUpdate(),
    CHUNK,
    FinishWeightUpdate(),
    AbortWeightUpdate(),
    SendWeights(rendezvous="file:///nowhere"),
    CallExtension(method="a.b"),
    StartWorkerProfile(folder="x"),
    StopWorkerProfile(),
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    LOG.clear()
    BEHAVIOUR.clear()
    yield
    LOG.clear()
    BEHAVIOUR.clear()


@pytest.fixture
def worker() -> Worker:
    """One that stands; ``LOG`` begins here."""
    device = ScriptedDevice()
    made = Worker(payload(), host=scripted_host(), make_device=lambda kind: device)
    for call in START:
        made.handle(call)
    BEHAVIOUR["execute_model"] = output()
    LOG.clear()
    return made


def refused(worker: Worker, call: Call, said: str) -> None:
    before = list(LOG)
    with pytest.raises(RuntimeError) as caught:
        worker.handle(call)
    assert str(caught.value) == said
    assert before == LOG, "a call out of its turn reached somebody"


@pytest.mark.parametrize("call", LIFE, ids=lambda call: type(call).__name__)
def test_nothing_before_the_start_has_ended(call: Any) -> None:
    device = ScriptedDevice()
    made = Worker(payload(), host=scripted_host(), make_device=lambda kind: device)
    for done, phase in enumerate(START):
        name = str(call.__struct_config__.tag)
        refused(made, call, f"{name} came before {phase.__struct_config__.tag}")
        assert made._done == done
        made.handle(phase)
    made.handle(Shutdown())
    refused(made, call, f"{name} came after shutdown")


def test_sleep_and_wake(worker: Worker) -> None:
    assert worker.handle(SleepWorker(level=1)) == Ack()
    refused(worker, STEP, "execute_model came while the worker sleeps (level 1, without kv_cache and weights)")
    refused(
        worker, SampleTokens(), "sample_tokens came while the worker sleeps (level 1, without kv_cache and weights)"
    )
    refused(worker, SleepWorker(), "sleep_worker came while the worker sleeps (level 1, without kv_cache and weights)")
    refused(
        worker,
        StartWeightUpdate(path="x"),
        "start_weight_update came while the weights are kept aside: wake them up first",
    )
    worker.handle(WakeWorker(tags=("weights",)))
    refused(worker, STEP, "execute_model came while the worker sleeps (level 1, without kv_cache)")
    worker.handle(WakeWorker())
    worker.handle(WakeWorker())
    assert [line for line in LOG if "empty" not in line] == ["sleep 1", "wake_up weights", "wake_up kv_cache"]
    worker.handle(STEP)


def test_weights_that_were_dropped_come_by_an_update(worker: Worker) -> None:
    worker.handle(SleepWorker(level=2))
    refused(worker, WakeWorker(), "wake_worker came for weights that sleep dropped: they come by a weight update")
    worker.handle(WakeWorker(tags=("kv_cache",)))
    refused(worker, STEP, "execute_model came while the worker sleeps (level 2, without weights)")
    worker.handle(StartWeightUpdate(path="x"))
    worker.handle(FinishWeightUpdate())
    worker.handle(STEP)


def test_an_update_in_its_order(worker: Worker) -> None:
    refused(worker, CHUNK, "a chunk of weights came without start_weight_update before it")
    refused(worker, FinishWeightUpdate(), "finish_weight_update came without start_weight_update before it")
    worker.handle(AbortWeightUpdate())
    assert LOG == []
    worker.handle(StartWeightUpdate())
    worker.handle(CHUNK)
    for call in (STEP, SleepWorker(), SendWeights(rendezvous="")):
        refused(worker, call, f"{call.__struct_config__.tag} came in the middle of a weight update")
    refused(
        worker,
        StartWeightUpdate(),
        "start_weight_update came in the middle of another one: abort that one first",
    )
    worker.handle(AbortWeightUpdate())
    worker.handle(STEP)
    worker.handle(StartWeightUpdate())
    worker.handle(FinishWeightUpdate(version="2"))
    lines = [line for line in LOG if "empty" not in line]
    assert lines == [
        "start_weight_update",
        "update_weights_chunk a",
        "abort_weight_update",
        "execute_model",
        "start_weight_update",
        "finish_weight_update 2",
    ]


def test_an_update_that_cannot_start_is_none(worker: Worker) -> None:
    BEHAVIOUR["start_weight_update"] = OSError("no such folder")
    with pytest.raises(OSError, match="no such folder"):
        worker.handle(StartWeightUpdate(path="x"))
    assert LOG == ["start_weight_update x", "abort_weight_update"]
    worker.handle(STEP)


def test_a_finish_that_fails_can_be_aborted(worker: Worker) -> None:
    BEHAVIOUR["finish_weight_update"] = ValueError("half of them are missing")
    worker.handle(StartWeightUpdate())
    with pytest.raises(ValueError, match="half of them"):
        worker.handle(FinishWeightUpdate())
    refused(worker, STEP, "execute_model came in the middle of a weight update")
    worker.handle(AbortWeightUpdate())
    worker.handle(STEP)


def test_what_raises_leaves_the_worker_awake(worker: Worker) -> None:
    BEHAVIOUR["sleep"] = MemoryError("no host memory")
    with pytest.raises(MemoryError):
        worker.handle(SleepWorker())
    worker.handle(STEP)


def test_an_undeclared_method(worker: Worker) -> None:
    refused(worker, CallExtension(method="a.b"), "no worker extension declares 'a.b'; declared: nothing")


def test_a_runner_without_any_of_it(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    from enginebay.interfaces import ModelRunner
    from support.workers import ScriptedRunner

    for name in ("sleep", "wake_up", "start_weight_update"):
        monkeypatch.setattr(ScriptedRunner, name, getattr(ModelRunner, name))
    with pytest.raises(NotImplementedError, match=r"^ScriptedRunner does not sleep$"):
        worker.handle(SleepWorker())
    with pytest.raises(NotImplementedError, match=r"^ScriptedRunner does not take other weights$"):
        worker.handle(StartWeightUpdate())
    with pytest.raises(NotImplementedError, match=r"^ScriptedRunner does not show its weights$"):
        worker.handle(SendWeights(rendezvous="file:///nowhere"))
    worker.handle(STEP)


def test_a_profile(worker: Worker, tmp_path: Path) -> None:
    refused(worker, StopWorkerProfile(), "no profile is being recorded: start one first")
    worker.handle(StartWorkerProfile(folder=str(tmp_path / "deep" / "folder")))
    refused(worker, StartWorkerProfile(folder=""), "a profile is being recorded already: stop it first")
    worker.handle(STEP)
    written = worker.handle(StopWorkerProfile())
    assert isinstance(written, ProfileWritten)
    assert os.path.getsize(written.path) > 0
    worker.handle(StartWorkerProfile(folder=str(tmp_path)))
    worker.shutdown()
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]

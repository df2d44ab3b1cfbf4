"""The start of a worker, verb by verb, against a device that writes them down."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay.errors import CapabilityError, OutOfMemory, StartFailed
from enginebay.messages import (
    Ack,
    Call,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    DeviceMemory,
    DeviceReady,
    ExecuteModel,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LoadModel,
    MemoryAvailable,
    ModelLoaded,
    PluginsLoaded,
    RankPlace,
    Result,
    SampleTokens,
    SchedulerOutput,
    Shutdown,
    StepResult,
    WorldPlan,
)
from enginebay.worker import Worker, distributed, start
from support.scripted_device import GIB, ScriptedDevice
from support.workers import BEHAVIOUR, LOG, output, payload, scripted_host

START: tuple[Call, ...] = (
    InitWorker(),
    InitDevice(),
    LoadModel(),
    DetermineAvailableMemory(),
    InitializeKVCache(num_blocks=7),
    CompileOrWarmUpModel(),
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    LOG.clear()
    BEHAVIOUR.clear()
    yield
    LOG.clear()
    BEHAVIOUR.clear()


def worker(device: ScriptedDevice, /, **config: Any) -> Worker:
    return Worker(payload(**config), host=scripted_host(), make_device=lambda kind: device)


def start_all(one: Worker) -> list[Result]:
    return [one.handle(call) for call in START]


def test_cuda_start_in_the_exact_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(start, "available_cores", lambda: 6)
    collect, join = gc.collect, distributed.join_world

    def collected() -> int:
        LOG.append("gc.collect")
        return collect()

    monkeypatch.setattr(gc, "collect", collected)

    def joined(*arguments: Any) -> distributed.Membership:
        LOG.append(f"join_world, NCCL variable {'set' if 'NCCL_ASYNC_ERROR_HANDLING' in os.environ else 'dropped'}")
        return join(*arguments)

    monkeypatch.setattr(start, "join_world", joined)
    device = ScriptedDevice("cuda", log=LOG)
    one = worker(device, model={"seed": 5})
    results = start_all(one)
    assert [type(result) for result in results] == [
        PluginsLoaded,
        DeviceReady,
        ModelLoaded,
        MemoryAvailable,
        Ack,
        Ack,
    ]
    one.shutdown()
    one.shutdown()
    assert LOG == [
        # init_device
        "unavailable_reason",  # auto: is there an accelerator that the runner supports?
        "unavailable_reason",
        "count",
        "set_current 0",
        "supports_dtype float32",
        "supports_dtype float32",
        "set_threads 6",
        "join_world, NCCL variable dropped",
        "seed 5",
        "touch_math_library",
        "gc.collect",
        "empty_cache",
        "memory",
        "runner float32/float32 on cuda:0",
        # load_model
        "memory",
        "load_model",
        "synchronize",
        "kv_cache_spec",
        "memory",
        # determine_available_memory
        "reset_peak",
        "profile_run",
        "synchronize",
        "memory",
        "empty_cache",
        # initialize_kv_cache, compile_or_warm_up_model
        "initialize_kv_cache 7",
        "warm_up",
        "synchronize",
        # shutdown, once
        "close",
        "gc.collect",
        "empty_cache",
    ]


def test_the_variable_stays_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    start_all(worker(ScriptedDevice("cpu"), device={"kind": "cpu"}))
    assert os.environ["NCCL_ASYNC_ERROR_HANDLING"] == "1"


def test_replies_of_the_start() -> None:
    before = DeviceMemory(total=10 * GIB, free=9 * GIB, allocated=GIB, reserved=GIB, peak=GIB, process=GIB)
    loaded = DeviceMemory(total=10 * GIB, free=7 * GIB, allocated=3 * GIB, reserved=3 * GIB, peak=3 * GIB)
    peak = DeviceMemory(total=10 * GIB, free=5 * GIB, allocated=3 * GIB, reserved=4 * GIB, peak=4 * GIB)
    device = ScriptedDevice("cuda", memories=(before, before, loaded, peak))
    one = worker(device, cache={"memory_utilization": 0.8})
    plugins, ready, model, available, *_ = start_all(one)
    assert isinstance(plugins, PluginsLoaded)
    assert [(p.kind, p.name, p.options) for p in plugins.plugins] == [("runner", "scripted", "{}")]
    assert isinstance(ready, DeviceReady)
    assert (ready.worker.rank, ready.worker.incarnation, ready.worker.device) == (0, "w0-abc", "cuda:0")
    assert ready.worker.pid == os.getpid()
    assert ready.snapshot.free == 9 * GIB
    assert ready.requested_bytes == 8 * GIB
    assert isinstance(model, ModelLoaded)
    assert model.weight_bytes == 2 * GIB
    assert model.in_force == {"attention": "none"}
    # requested 8, grew outside the allocator from 0 to 1 (a co-tenant), peak 4: 3 are left
    assert available == MemoryAvailable(kv_cache_bytes=3 * GIB, free_bytes=5 * GIB)


def test_cpu_without_a_share_skips_the_profile_run() -> None:
    device = ScriptedDevice("cpu", memories=(DeviceMemory(total=8 * GIB, free=4 * GIB),), log=LOG)
    results = start_all(worker(device, device={"kind": "cpu"}))
    assert results[3] == MemoryAvailable(kv_cache_bytes=GIB, free_bytes=4 * GIB)
    assert "profile_run" not in LOG


def test_cpu_with_a_share_profiles_and_counts_the_process() -> None:
    device = ScriptedDevice("cpu", memories=(DeviceMemory(total=8 * GIB, free=6 * GIB, process=GIB, peak=2 * GIB),))
    results = start_all(worker(device, device={"kind": "cpu"}, cache={"memory_utilization": 0.5}))
    assert results[3] == MemoryAvailable(kv_cache_bytes=2 * GIB, free_bytes=6 * GIB)
    assert "profile_run" in LOG


@pytest.mark.parametrize(
    ("cache", "fixed", "expected"),
    [
        ({"num_blocks": 12}, None, 12 << 20),
        ({"memory_bytes": 5 << 20}, None, 5 << 20),
        ({"num_blocks": 12}, 3, 3 << 20),
    ],
)
def test_a_size_that_is_given_is_answered(cache: dict[str, int], fixed: int | None, expected: int) -> None:
    BEHAVIOUR["num_blocks"] = fixed
    results = start_all(worker(ScriptedDevice("cuda"), cache=cache))
    assert results[3] == MemoryAvailable(kv_cache_bytes=expected, free_bytes=10 * GIB)


def test_a_co_tenant_that_comes_before_the_snapshot_is_told_of() -> None:
    device = ScriptedDevice("cuda", memories=(DeviceMemory(total=10 * GIB, free=4 * GIB),))
    one = worker(device)
    one.handle(InitWorker())
    with pytest.raises(OutOfMemory) as caught:
        one.handle(InitDevice())
    assert str(caught.value) == (
        "cuda:0 has 4.0 GiB free of 10.0 GiB, and memory_utilization 0.9 asks for 9.0 GiB: lower [cache] "
        "memory_utilization below 0.40, or end what else holds memory on cuda:0 (6.0 GiB)"
    )


@pytest.mark.parametrize(
    ("call", "done", "message"),
    [
        (LoadModel(), 0, "load_model came before init_worker; the order is init_worker, init_device, load_model, "),
        (InitWorker(), 2, "init_worker came a second time; the order is init_worker, init_device, load_model, "),
        (
            ExecuteModel(scheduler_output=SchedulerOutput(step=0)),
            5,
            "execute_model came before compile_or_warm_up_model",
        ),
        (SampleTokens(), 3, "sample_tokens came before determine_available_memory"),
    ],
)
def test_calls_out_of_their_turn_are_refused(call: Call, done: int, message: str) -> None:
    one = worker(ScriptedDevice("cuda"))
    for earlier in START[:done]:
        one.handle(earlier)
    with pytest.raises(RuntimeError) as caught:
        one.handle(call)
    assert str(caught.value).startswith(message)
    for later in START[done:]:  # and nothing has changed by it
        one.handle(later)


def test_a_failed_phase_may_be_asked_for_again() -> None:
    BEHAVIOUR["load_model"] = ValueError("torn")
    one = worker(ScriptedDevice("cuda"))
    for call in START[:2]:
        one.handle(call)
    with pytest.raises(ValueError, match="torn"):
        one.handle(LoadModel())
    BEHAVIOUR.clear()
    for call in START[2:]:
        one.handle(call)


def test_after_shutdown_every_call_is_refused() -> None:
    one = worker(ScriptedDevice("cuda"))
    start_all(one)
    assert one.handle(Shutdown()) == Ack()
    assert one.handle(Shutdown()) == Ack()
    for call in (InitWorker(), ExecuteModel(scheduler_output=SchedulerOutput(step=0))):
        with pytest.raises(RuntimeError, match="came after shutdown"):
            one.handle(call)
    assert LOG.count("close") == 1


def test_execute_then_sample() -> None:
    one = worker(ScriptedDevice("cuda"))
    start_all(one)
    BEHAVIOUR["sample_tokens"] = output("a")
    step = ExecuteModel(scheduler_output=SchedulerOutput(step=1, constrained=("a",)))
    result = one.handle(step)
    assert isinstance(result, StepResult)
    assert (result.output, result.step) == (None, 1)
    assert result.start_ns <= result.end_ns
    sampled = one.handle(SampleTokens())
    assert isinstance(sampled, StepResult)
    assert (sampled.output, sampled.step) == (output("a"), 1)
    with pytest.raises(RuntimeError, match="sample_tokens came without a step before it"):
        one.handle(SampleTokens())


def test_a_step_without_masks_is_drawn_in_the_same_call() -> None:
    one = worker(ScriptedDevice("cuda"))
    start_all(one)
    BEHAVIOUR["sample_tokens"] = output("a")
    result = one.handle(ExecuteModel(scheduler_output=SchedulerOutput(step=1)))
    assert isinstance(result, StepResult)
    assert (result.output, result.step) == (output("a"), 1)
    with pytest.raises(RuntimeError, match="sample_tokens came without a step before it"):
        one.handle(SampleTokens())


def test_an_async_output_is_resolved_before_the_reply() -> None:
    class Later:
        def get_output(self) -> Any:
            return output("b")

    one = worker(ScriptedDevice("cuda"))
    start_all(one)
    BEHAVIOUR["execute_model"] = lambda _: Later()
    result = one.handle(ExecuteModel(scheduler_output=SchedulerOutput(step=1)))
    assert isinstance(result, StepResult)
    assert result.output == output("b")


def test_an_async_output_is_read_on_the_output_rank_alone() -> None:
    class Never:
        def get_output(self) -> Any:
            raise AssertionError("nobody reads it here")

    world = WorldPlan(ranks=(RankPlace(rank=1),), output_rank=0)
    one = Worker(
        payload(place=RankPlace(rank=1), world=world), host=scripted_host(), make_device=lambda kind: ScriptedDevice()
    )
    start_all(one)
    BEHAVIOUR["execute_model"] = lambda _: Never()
    assert one.handle(ExecuteModel(scheduler_output=SchedulerOutput(step=1))) == Ack()


def test_a_runner_that_returns_something_else_is_named() -> None:
    one = worker(ScriptedDevice("cuda"))
    start_all(one)
    BEHAVIOUR["execute_model"] = lambda _: [1, 2]
    with pytest.raises(TypeError, match="the runner returned a list; execute_model and sample_tokens return"):
        one.handle(ExecuteModel(scheduler_output=SchedulerOutput(step=1)))


def test_only_the_output_rank_returns_data() -> None:
    world = WorldPlan(ranks=(RankPlace(rank=1),), output_rank=0)
    one = Worker(
        payload(place=RankPlace(rank=1), world=world), host=scripted_host(), make_device=lambda kind: ScriptedDevice()
    )
    start_all(one)
    BEHAVIOUR["execute_model"] = output("a")
    assert one.handle(ExecuteModel(scheduler_output=SchedulerOutput(step=1))) == Ack()


@pytest.mark.parametrize(
    ("device", "config", "message"),
    [
        (
            ScriptedDevice("cuda", dtypes=("float32", "float16")),
            {"model": {"dtype": "bfloat16"}},
            "cuda:0 does not compute in bfloat16 ([model] dtype in force); it can: float32, float16",
        ),
        (
            ScriptedDevice("cuda", dtypes=("float32",)),
            {"cache": {"dtype": "float16"}},
            "cuda:0 does not compute in float16 ([cache] dtype in force); it can: float32",
        ),
        (
            ScriptedDevice("cuda", unavailable="no driver"),
            {"device": {"kind": "cuda"}},
            "[device] kind 'cuda' cannot be used here: no driver",
        ),
        (
            ScriptedDevice("cuda"),
            {"device": {"kind": "tpu"}},
            "runner 'scripted' does not compute on 'tpu'; it can use: cpu, cuda. Change [device] kind, or [runner] use",
        ),
        (
            ScriptedDevice("cuda", devices=0),
            {"device": {"kind": "cuda"}},
            (
                "rank 0 (local rank 0) needs cuda device 0, and this process sees 0 cuda devices through "
                "CUDA_VISIBLE_DEVICES. Make more devices visible, or lower tensor_parallel_size, "
                "pipeline_parallel_size or data_parallel_size in [parallel]"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(device: ScriptedDevice, config: dict[str, Any], message: str) -> None:
    one = worker(device, **config)
    one.handle(InitWorker())
    with pytest.raises(CapabilityError) as caught:
        one.handle(InitDevice())
    assert str(caught.value) == message


def test_a_world_that_does_not_meet_fails_before_the_snapshot() -> None:
    """Of two ranks without a place to meet; a device without collectives is refused by name."""
    world = WorldPlan(ranks=(RankPlace(), RankPlace(rank=1, local_rank=1)), tensor_parallel_size=2)
    device = ScriptedDevice("cuda", devices=2)
    one = Worker(payload(world=world), host=scripted_host(), make_device=lambda kind: device)
    one.handle(InitWorker())
    with pytest.raises(StartFailed, match=r"^'' is no rendezvous: it is file:///folder/name, tcp"):
        one.handle(InitDevice())
    device.collective_backend = lambda: ""  # type: ignore[method-assign]  # as of a device that torch does not know
    with pytest.raises(CapabilityError, match=r"^rank 0 belongs to a world of 2 ranks, and cuda has no collective"):
        one.handle(InitDevice())
    assert "memory" not in device.log


def test_close_that_fails_still_gives_the_memory_back() -> None:
    device = ScriptedDevice("cuda", log=LOG)
    one = worker(device)
    start_all(one)
    BEHAVIOUR["close"] = RuntimeError("stuck")
    with pytest.raises(RuntimeError, match="stuck"):
        one.shutdown()
    assert LOG[-2:] == ["close", "empty_cache"]
    one.shutdown()
    assert LOG.count("close") == 1

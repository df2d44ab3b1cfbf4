"""From a plan to a running core, and back when something fails half-way: errors, exit codes, hooks, the start trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from enginebay import __version__
from enginebay.config import load
from enginebay.engine.core import EngineCore
from enginebay.engine.front.front import Front, resolve_config
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.bringup import BringUp
from enginebay.engine.startup.plan import plan
from enginebay.errors import (
    CapabilityError,
    ConfigError,
    EnginebayError,
    ModelError,
    PluginNotFound,
    StartFailed,
    WorkerFailed,
    WorkerHung,
    WorkerLost,
)
from enginebay.interfaces import ExecutorHealth, RankHealth
from enginebay.messages import MemorySnapshot, PluginIdentity, PluginsLoaded, WorkerInfo
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from support.fake_engines import Installed
from support.spans import recorded


def started(
    fake: Installed, host: PluginHost | None = None, *, sets: tuple[str, ...] = (), **options: Any
) -> EngineCore:
    host = host or PluginHost()
    return start(plan(load(fake.config(**options), sets=sets, environ={}), host), system_runtime(seed=0), host)


def test_a_start_tells_the_hooks_and_says_what_is_in_force(
    fake: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:  # P8
    told: list[Any] = []
    host = PluginHost()
    monkeypatch.setattr(host.hooks, "worker_started", lambda worker: told.append(worker))
    monkeypatch.setattr(host.hooks, "memory_snapshot", lambda rank, snapshot: told.append((rank, snapshot)))
    monkeypatch.setattr(host.hooks, "engine_started", lambda in_force: told.append(dict(in_force)))
    monkeypatch.setattr(host.hooks, "engine_stopped", lambda: told.append("stopped"))
    core = started(fake, host)
    core.stop()
    worker, (rank, snapshot), in_force, stopped = told
    assert isinstance(worker, WorkerInfo)
    assert (rank, type(snapshot), stopped) == (0, MemorySnapshot, "stopped")
    assert in_force == core.in_force
    assert {k: in_force[k] for k in ("executor", "runner", "scheduler", "attention", "device", "overlap")} == {
        "executor": "uni",
        "runner": "fake",
        "scheduler": "fcfs",
        "attention": "none at all",
        "device": "cpu",
        "overlap": "on",
    }
    assert in_force["kv_blocks"] == "256 ([cache] num_blocks)"


@pytest.mark.parametrize("method", ["__init__", "load_model", "initialize_kv_cache", "warm_up"])
def test_a_start_that_fails_half_way_leaves_nothing(fake: Installed, method: str) -> None:  # X14
    phase = {"__init__": "init_device", "warm_up": "compile_or_warm_up_model"}.get(method, method)
    with pytest.raises(WorkerFailed) as caught:
        started(fake, fail=method)
    assert f"failed in {phase}: ValueError: asked to fail in {method}" in str(caught.value)
    assert caught.value.exit_code == 3
    assert "asked to fail" in caught.value.remote_traceback


def test_too_few_blocks_for_a_length_that_was_asked_for(fake: Installed) -> None:
    with pytest.raises(CapabilityError, match=r"\[model\] max_model_len = 500 does not fit: .* enough for 64 tokens"):
        started(fake, sets=("cache.num_blocks=4", "model.max_model_len=500"))


def test_too_few_blocks_are_said_and_are_the_longest_request(fake: Installed) -> None:
    core = started(fake, sets=("cache.num_blocks=4",))
    try:
        assert core.in_force["longest request"].startswith("64 tokens: the KV cache has ")
        with pytest.raises(EnginebayError, match="a request may have 64"):
            core.limits.check_fits(64, 1)
        core.limits.check_fits(60, 100)
    finally:
        core.stop()


def test_a_worker_with_other_plugins_is_named(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # P7
    call = BringUp._call

    def other(self: BringUp, asked: Any, expected: Any) -> Any:
        if expected is not PluginsLoaded:
            return call(self, asked, expected)
        theirs = PluginIdentity(kind="runner", name="fake", package="fake-runner", version="2.0")
        return [PluginsLoaded(plugins=(theirs,))]

    monkeypatch.setattr(BringUp, "_call", other)
    with pytest.raises(StartFailed) as caught:
        started(fake)
    assert str(caught.value) == (
        "rank 0 loaded runner 'fake' (fake-runner 2.0, options {}), but the engine has runner 'fake' (fake-runner 1.0, "
        'options {"announce":0,"burn_seconds":0.0,"fail":"","hold":"","step_seconds":0.0}): every process must have '
        "the same packages, versions and options"
    )


def test_a_phase_that_hangs_is_named(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(self: Any, *wait: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr("enginebay.engine.lookout.Lookout.wait", hang)
    monkeypatch.setattr("enginebay_uni.executor.UniExecutor.health", lambda self: ExecutorHealth(alive=True))
    with pytest.raises(StartFailed) as caught:
        started(fake)
    assert str(caught.value).startswith("the workers did not finish init_worker within 600 s ([deadlines] load_model)")
    ranks = (
        RankHealth(rank=2, phase="idle", age=3.0, state="running"),
        RankHealth(rank=3, phase="init_worker", age=412.0, state="running"),
    )
    health = ExecutorHealth(alive=True, ranks=ranks)
    monkeypatch.setattr("enginebay_uni.executor.UniExecutor.health", lambda self: health)
    with pytest.raises(StartFailed) as caught:
        started(fake)
    assert str(caught.value) == (
        "rank 3 did not finish init_worker within 600 s ([deadlines] load_model): "
        "rank 3 has been in init_worker for 412 s"
    )


@pytest.mark.parametrize("error", [WorkerLost("rank 0: gone"), WorkerHung("rank 0: stopped")])
def test_a_worker_lost_in_the_first_start_is_a_failed_start(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, error: EnginebayError
) -> None:  # E2: 3, not 4 or 5
    def lose(self: Any, *wait: Any) -> Any:
        raise error

    monkeypatch.setattr("enginebay.engine.lookout.Lookout.wait", lose)
    with pytest.raises(StartFailed, match=f"^the start failed: {error}$") as caught:
        started(fake)
    assert caught.value.exit_code == 3


def test_a_model_without_a_tokenizer(fake: Installed) -> None:
    (fake.model / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json") as caught:
        started(fake)
    assert caught.value.exit_code == 2


def test_the_start_is_one_trace(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # O1
    with recorded(monkeypatch) as spans:
        Front.open(fake.config()).close()
        (root,) = spans.named("engine.start")
        (launch,) = spans.named("executor.launch")
        (worker,) = spans.named("worker.init")
        assert spans.children(root) == ["config.resolve", "plugin.discovery", "executor.launch"]
        assert spans.children(launch) == ["worker.init"]
        assert spans.children(worker) == [
            "worker.init_device",
            "worker.load_model",
            "worker.profile",
            "worker.allocate_kv_cache",
            "worker.warm_up",
        ]
    assert root.context is not None
    assert {s.context.trace_id for s in (root, launch, worker) if s.context is not None} == {root.context.trace_id}
    assert dict(root.attributes or {}) == {
        "enginebay.executor": f"uni (enginebay {__version__})",
        "enginebay.runner": "fake (fake-runner 1.0)",
        "enginebay.scheduler": f"fcfs (enginebay {__version__})",
        "enginebay.overlap": "on",
        "enginebay.graph": "eager",
        "enginebay.world_size": 1,
        "enginebay.model": "model",
        "enginebay.attention": "none at all",
        "enginebay.kv.blocks": 256,
    }
    times = [(span.start_time or 0, span.end_time or 0) for span in spans.all() if span.parent is not None]
    assert all(root.start_time <= begun <= ended <= root.end_time for begun, ended in times)  # type: ignore[operator]  # they have ended


@pytest.mark.parametrize(
    ("break_it", "error"),
    [
        (lambda fake: fake.config() | {"runner": {"use": "nowhere"}}, PluginNotFound),  # in plan()
        (lambda fake: fake.config() | {"model": {"path": str(fake.model / "nowhere")}}, ModelError),  # in plan()
        (lambda fake: ((fake.model / "tokenizer.json").unlink(), fake.config())[1], ModelError),
        (lambda fake: fake.config(fail="load_model"), WorkerFailed),
    ],
)
def test_a_start_that_fails_anywhere_is_a_trace_too(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[Installed], Any], error: type[Exception]
) -> None:  # O1
    config = break_it(fake)
    with recorded(monkeypatch) as spans:
        with pytest.raises(error):
            Front.open(config)
        (root,) = spans.named("engine.start")
        assert spans.children(root)[:2] == ["config.resolve", "plugin.discovery"]
    assert root.status.status_code is StatusCode.ERROR
    assert dict(root.attributes or {})["error.type"] == error.__name__


def test_each_scheduler_has_a_cache_of_its_own(fake: Installed) -> None:
    core = started(fake)
    try:
        one, two = core._parts.make_scheduler(), core._parts.make_scheduler()
        assert one is not two
        assert one.context.kv_cache is not two.context.kv_cache
        assert one.context.kv_cache.num_blocks == 256
        assert core.stats().scheduler.num_blocks == 256
    finally:
        core.stop()


def test_every_scheduler_is_told_how_many_stages_work_at_the_same_time(fake: Installed) -> None:
    made = plan(load(fake.config(), environ={}), host := PluginHost())
    parallel = made.config.parallel.model_copy(update={"pipeline_parallel_size": 2})
    config = made.config.model_copy(update={"parallel": parallel})
    for depth, stages in ((1, 1), (2, 2), (3, 2)):
        core = start(replace(made, config=config, depth=depth), system_runtime(seed=0), host)
        try:
            assert core._parts.make_scheduler().context.num_stages == stages
        finally:
            core.stop()


def test_a_start_that_fails_is_recorded(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # O1
    with recorded(monkeypatch) as spans:
        with pytest.raises(WorkerFailed):
            started(fake, fail="load_model")
        (root,) = spans.named("engine.start")
        (load_model,) = spans.named("worker.load_model")
    assert root.status.status_code is load_model.status.status_code is StatusCode.ERROR
    assert dict(root.attributes or {})["error.type"] == "WorkerFailed"


def test_configs_in_all_their_forms(fake: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(f'[model]\npath = "{fake.model}"\n[scheduler]\nmax_num_seqs = 3\n')
    monkeypatch.setenv("ENGINEBAY__CACHE__NUM_BLOCKS", "7")
    sets = ("scheduler.max_num_seqs=4",)
    for given in (file, str(file), {"model": {"path": str(fake.model)}}):
        got = resolve_config(given, sets).config
        assert (got.model.path, got.scheduler.max_num_seqs, got.cache.num_blocks) == (fake.model, 4, 7)
    whole = load(file, environ={}).config
    assert resolve_config(whole, ()).config is whole
    again = resolve_config(whole, sets).config
    assert (again.scheduler.max_num_seqs, again.cache.num_blocks) == (4, None)
    assert resolve_config(None, sets).config.scheduler.max_num_seqs == 4
    with pytest.raises(ConfigError, match="max_num_seq"):
        resolve_config({"scheduler": {"max_num_seq": 3}}, ())

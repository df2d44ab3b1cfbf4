"""The typed face of the hooks: who is called, in which order, and what a raising one may not do."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from enginebay.config import EngineConfig
from enginebay.errors import ConfigError, PluginBroken
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Executor
from enginebay.kvcache import CacheCleared, CacheEventBatch
from enginebay.messages import Incarnation, SchedulerStats, Slot, StepReport, WorkerStatus
from enginebay.plugins import PluginHost
from support.fake_dist import FakeSite

REPORT = StepReport(
    step=1,
    generation=0,
    num_requests=1,
    num_scheduled_tokens=1,
    num_committed_tokens=1,
    start_ns=0,
    scheduled_ns=1,
    executed_ns=2,
    end_ns=3,
    stats=SchedulerStats(),
)
WORKER = WorkerStatus(slot=Slot(group=0, rank=0, device="cpu:0"), incarnation=Incarnation(id="a"))


def extension(site: FakeSite, name: str, hooks: str, wrap_order: int = 0) -> Any:
    """Install an extension whose object has these methods; its module, imported when it is loaded."""
    methods = "\n".join(f"    {line}" for line in hooks.strip("\n").splitlines())
    return site.plugin(
        "extensions",
        name,
        f"""
calls = []

class Extension:
    def __init__(self, options):
        self.options = options

{methods}

@hookimpl
def enginebay_register_extensions():
    return [ExtensionPlugin(name={name!r}, factory=Extension, wrap_order={wrap_order})]
""",
    )


def test_every_hook_reaches_an_extension_and_a_module(site: FakeSite) -> None:
    module = extension(site, "watch", "@hookimpl\ndef enginebay_engine_started(self, in_force): calls.append(in_force)")
    host = site.host()
    host.hooks.engine_started({"runner": "v1"})  # nobody is there yet
    host.load_extensions({"watch": {}})
    host.load_extensions({"watch": {}})  # once is enough
    host.hooks.engine_started({"runner": "v2"})
    assert sys.modules[module].calls == [{"runner": "v2"}]
    assert host.hooks.listeners("enginebay_engine_started") == ("extension 'watch' (watch-pkg 1.0)",)


def test_an_observer_is_disabled_at_the_third_time(site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:
    bad = extension(
        site, "bad", "@hookimpl\ndef enginebay_step_finished(self, report): calls.append(report); raise ValueError('x')"
    )
    good = extension(site, "good", "@hookimpl\ndef enginebay_step_finished(self, report): calls.append(report.step)")
    host = site.host()
    host.load_extensions({"bad": {}, "good": {}})
    with caplog.at_level(logging.WARNING, "enginebay"):
        for _ in range(5):
            host.hooks.step_finished(REPORT)
    assert len(sys.modules[bad].calls) == 3
    assert sys.modules[good].calls == [1] * 5  # the other one misses nothing
    said = "enginebay_step_finished of extension 'bad' (bad-pkg 1.0) raised"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", f"{said} ValueError: x"),
        ("WARNING", f"{said} ValueError: x"),
        ("ERROR", f"{said} for the third time and is disabled: ValueError: x"),
    ]


def test_a_hook_that_leaves_is_a_hook_that_raises(site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:
    """A ``sys.exit`` in a hook ends nothing: neither a step nor the process."""
    body = "@hookimpl\ndef enginebay_step_finished(self, report): calls.append(1); raise SystemExit(3)\n"
    bad = extension(site, "bad", body + "@hookimpl\ndef enginebay_configure(self, config): raise SystemExit(4)")
    host = site.host()
    host.load_extensions({"bad": {}})
    with caplog.at_level(logging.WARNING, "enginebay"):
        for _ in range(5):
            host.hooks.step_finished(REPORT)
    assert len(sys.modules[bad].calls) == 3
    assert caplog.records[-1].getMessage() == (
        "enginebay_step_finished of extension 'bad' (bad-pkg 1.0) raised for the third time and is disabled: "
        "SystemExit: 3"
    )
    with pytest.raises(
        PluginBroken, match=r"enginebay_configure of extension 'bad' \(bad-pkg 1.0\) raised SystemExit: 4"
    ):
        host.hooks.configure(EngineConfig())


def test_probes_are_named_and_not_asked_yet(site: FakeSite) -> None:
    probe = "@hookimpl\ndef enginebay_probe_reclaim(self, worker): "
    good = extension(site, "good", f"{probe}calls.append(worker); return [worker.slot.name]")
    extension(site, "broken", f"{probe}raise SystemExit(3)")
    host = site.host()
    assert host.hooks.probe_reclaim(WORKER) == {}
    host.load_extensions({"good": {}, "broken": {}})
    probes = host.hooks.probe_reclaim(WORKER)
    assert list(probes) == [f"extension '{name}' ({name}-pkg 1.0)" for name in ("good", "broken")]
    assert sys.modules[good].calls == []
    assert [ask() for name, ask in probes.items() if "good" in name] == [["group-0/rank-0/cpu:0"]]
    assert sys.modules[good].calls == [WORKER]


def test_an_interrupt_in_a_hook_is_no_fault_of_it(site: FakeSite) -> None:
    extension(site, "slow", "@hookimpl\ndef enginebay_step_finished(self, report): raise KeyboardInterrupt")
    host = site.host()
    host.load_extensions({"slow": {}})
    with pytest.raises(KeyboardInterrupt):
        host.hooks.step_finished(REPORT)


def test_strikes_outlive_a_later_registration(site: FakeSite) -> None:
    bad = extension(
        site, "bad", "@hookimpl\ndef enginebay_engine_stopped(self): calls.append(1); raise ValueError('x')"
    )
    extension(site, "late", "pass")
    host = site.host()
    host.load_extensions({"bad": {}})
    for _ in range(3):
        host.hooks.engine_stopped()
    host.load_extensions({"late": {}})
    host.hooks.engine_stopped()
    assert len(sys.modules[bad].calls) == 3


def test_configure_may_refuse_and_not_change(site: FakeSite) -> None:
    extension(
        site,
        "picky",
        """
@hookimpl
def enginebay_configure(self, config):
    config.executor.options["changed"] = True
    if config.scheduler.use == "lottery":
        from enginebay.errors import ConfigError
        raise ConfigError("no gambling here: choose scheduler fcfs")
    if config.scheduler.use == "odd":
        raise KeyError("odd")
""",
    )
    host = site.host()
    host.load_extensions({"picky": {}})
    config = EngineConfig()
    host.hooks.configure(config)
    assert config.executor.options == {}
    with pytest.raises(ConfigError, match=r"^no gambling here: choose scheduler fcfs$"):
        host.hooks.configure(EngineConfig.model_validate({"scheduler": {"use": "lottery"}}))
    with pytest.raises(PluginBroken) as caught:
        host.hooks.configure(EngineConfig.model_validate({"scheduler": {"use": "odd"}}))
    assert str(caught.value) == "enginebay_configure of extension 'picky' (picky-pkg 1.0) raised KeyError: 'odd'"
    assert isinstance(caught.value.__cause__, KeyError)


class Inner(Executor[Any]):
    """Does nothing; ``context`` names the chain."""

    start = submit = health = stop = None  # type: ignore[assignment]  # never called


def test_executors_are_wrapped_in_order(site: FakeSite) -> None:
    hooks = """
@hookimpl
def enginebay_wrap_executor(self, executor, context):
    return type(executor)([*executor.context, {name!r}])
"""
    extension(site, "outer", hooks.format(name="outer"), wrap_order=5)
    extension(site, "inner", hooks.format(name="inner"), wrap_order=-1)
    extension(site, "none", "@hookimpl\ndef enginebay_wrap_executor(self, executor): return None")
    host = site.host()
    loaded = host.load_extensions({"outer": {}, "none": {}, "inner": {}})
    assert [one.plugin.name for one in loaded] == ["inner", "none", "outer"]
    wrapped = host.hooks.wrap_executor(Inner([]), None)  # type: ignore[arg-type]  # the hooks only pass it on
    assert wrapped.context == ["inner", "outer"]  # type: ignore[comparison-overlap]  # see Inner


def test_a_wrapper_must_return_an_executor(site: FakeSite) -> None:
    extension(site, "odd", "@hookimpl\ndef enginebay_wrap_executor(self, executor): return 7")
    host = site.host()
    host.load_extensions({"odd": {}})
    with pytest.raises(PluginBroken) as caught:
        host.hooks.wrap_executor(Inner([]), None)  # type: ignore[arg-type]  # the hooks only pass it on
    assert str(caught.value) == (
        "enginebay_wrap_executor of extension 'odd' (odd-pkg 1.0) returned a int, and must return an Executor or None."
    )


def test_an_extension_that_cannot_be_made(site: FakeSite) -> None:
    site.plugin(
        "extensions",
        "bad",
        """
        def broken(options):
            raise OSError("no such\\nport")

        @hookimpl
        def enginebay_register_extensions():
            return [ExtensionPlugin(name="bad", factory=broken)]
        """,
    )
    with pytest.raises(PluginBroken) as caught:
        site.host().load_extensions({"bad": {}})
    assert str(caught.value) == ("extension 'bad' of bad-pkg 1.0 is broken: making it raised OSError: no such port")


def test_hooks_match_their_specifications() -> None:
    """Each method of the face calls a hook that is specified, with the arguments of its specification."""
    import inspect

    from enginebay import hookspecs
    from enginebay.plugins import Hooks

    specified = {
        name.removeprefix("enginebay_"): list(inspect.signature(function).parameters)
        for name, function in vars(hookspecs).items()
        if name.startswith("enginebay_") and not name.startswith("enginebay_register_")
    }
    offered = {
        name: list(inspect.signature(method).parameters)[1:]
        for name, method in vars(Hooks).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in ("refresh", "listeners")
    }
    assert offered == specified


def test_each_hook_passes_what_it_says() -> None:
    """A recorder of every observing hook sees the very arguments."""
    seen: dict[str, dict[str, Any]] = {}

    class Recorder:
        @hookimpl
        def enginebay_engine_started(self, in_force: Any) -> None:
            seen["engine_started"] = {"in_force": in_force}

        @hookimpl
        def enginebay_engine_stopped(self) -> None:
            seen["engine_stopped"] = {}

        @hookimpl
        def enginebay_worker_started(self, worker: Any) -> None:
            seen["worker_started"] = {"worker": worker}

        @hookimpl
        def enginebay_memory_snapshot(self, rank: Any, snapshot: Any) -> None:
            seen["memory_snapshot"] = {"rank": rank, "snapshot": snapshot}

        @hookimpl
        def enginebay_step_finished(self, report: Any) -> None:
            seen["step_finished"] = {"report": report}

        @hookimpl
        def enginebay_request_finished(self, summary: Any) -> None:
            seen["request_finished"] = {"summary": summary}

        @hookimpl
        def enginebay_cache_events(self, batch: Any) -> None:
            seen["cache_events"] = {"batch": batch}

    host = PluginHost(entry_points=())
    host._manager.register(Recorder())
    host.hooks.refresh()
    given: dict[str, dict[str, Any]] = {
        "engine_started": {"in_force": {"a": "b"}},
        "engine_stopped": {},
        "worker_started": {"worker": object()},
        "memory_snapshot": {"rank": 3, "snapshot": object()},
        "step_finished": {"report": REPORT},
        "cache_events": {"batch": CacheEventBatch(step=1, generation=0, events=(CacheCleared(),))},
        "request_finished": {"summary": object()},
    }
    for name, arguments in given.items():
        getattr(host.hooks, name)(**arguments)
    assert seen == given

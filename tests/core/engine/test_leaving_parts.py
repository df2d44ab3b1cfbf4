"""A part whose making, or whose method, would end the process: whoever starts or asks the engine is told who it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from textwrap import dedent, indent
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.cli import main
from enginebay.errors import EnginebayError, PluginBroken, PolicyFailed, StartFailed, WorkerFailed
from support.fake_dist import FakeSite
from support.fake_engines import Installed
from support.leaving import in_a_thread

BODIES = {
    "SystemExit: 3": "raise SystemExit(3)",
    "GeneratorExit": "raise GeneratorExit",
    "CancelledError: x": "import asyncio; raise asyncio.CancelledError('x')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
}
KINDS = {
    "executors": "Executor",
    "runners": "Runner",
    "schedulers": "Scheduler",
    "worker_extensions": "WorkerExtension",
}


def offer(site: FakeSite, kind: str, body: str) -> None:
    """A plugin ``bad`` of that kind, whose factory is ``body``."""
    noun = KINDS[kind]
    more = ", supports=lambda model: None" if kind == "runners" else ""
    site.plugin(
        kind,
        "bad",
        f"def leave(context):\n{indent(body, ' ' * 4)}\n\n@hookimpl\ndef enginebay_register_{kind}():\n"
        f"    return [{noun}Plugin(name='bad', factory=leave{more})]\n",
    )


def sets(kind: str) -> tuple[str, ...]:
    return ("worker.extensions=['bad']",) if kind == "worker_extensions" else (f"{kind[:-1]}.use=bad",)


def opened(fake: Installed, *sets: str) -> Callable[[], Any]:
    config = fake.config()
    if "runner.use=bad" in sets:
        config["runner"] = {"use": "bad"}
    return lambda: LLM(config, sets=sets).close()


@pytest.mark.parametrize("kind", ["executors", "schedulers"])
@pytest.mark.parametrize(("said", "body"), BODIES.items())
def test_a_factory_that_leaves(fake: Installed, site: FakeSite, kind: str, said: str, body: str) -> None:
    offer(site, kind, body)
    error = in_a_thread(opened(fake, *sets(kind)))  # where a KeyboardInterrupt is no Ctrl-C
    assert type(error) is PluginBroken
    origin = " (bad-pkg 1.0)" if kind == "executors" else ""
    assert str(error) == f"{kind[:-1]} 'bad'{origin} could not be made: its factory raised {said}"


@pytest.mark.parametrize("kind", ["runners", "worker_extensions"])
@pytest.mark.parametrize("said", ["SystemExit: 3", "KeyboardInterrupt"])
def test_a_factory_that_leaves_in_a_worker(fake: Installed, site: FakeSite, kind: str, said: str) -> None:
    offer(site, kind, BODIES[said])
    error = in_a_thread(opened(fake, *sets(kind)))
    if kind == "runners":
        assert isinstance(error, WorkerFailed)
        assert f"failed in init_device: {said}" in str(error)
    else:
        assert type(error) is PluginBroken
        assert str(error) == f"worker extension 'bad' of bad-pkg 1.0 is broken: making it raised {said}"


def test_an_executor_that_is_none(fake: Installed, site: FakeSite) -> None:
    offer(site, "executors", "return 3")
    with pytest.raises(PluginBroken) as caught:
        opened(fake, "executor.use=bad")()
    assert str(caught.value) == (
        "executor 'bad' (bad-pkg 1.0) could not be made: its factory returned int, and an Executor is expected"
    )


def test_a_start_that_leaves(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any, spec: Any) -> Any:
        raise SystemExit(3)

    monkeypatch.setattr("enginebay_uni.executor.UniExecutor.start", leave)
    with pytest.raises(StartFailed, match=r"^executor 'uni' \(enginebay .*\) did not start: SystemExit: 3$"):
        opened(fake)()


def test_a_runner_that_leaves_when_it_is_asked(fake: Installed, site: FakeSite) -> None:
    offer(site, "runners", "raise SystemExit(3)")
    source = site.folder / "bad_pkg_plugin.py"
    source.write_text(source.read_text().replace("lambda model: None", "leave"))
    with pytest.raises(PluginBroken) as caught:
        opened(fake, "runner.use=bad")()
    assert str(caught.value) == "runner 'bad' is broken: supports() raised SystemExit: 3"


def test_the_command_line_says_who_left(fake: Installed, site: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    offer(site, "schedulers", "import sys; sys.exit(3)")
    with pytest.raises(SystemExit) as caught:
        main(["generate", "hi", *fake.arguments(), "--set", "scheduler.use=bad"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err == "enginebay: scheduler 'bad' could not be made: its factory raised SystemExit: 3\n"


@pytest.mark.parametrize(("said", "body"), BODIES.items())
def test_a_policy_that_leaves_is_named_to_who_asked(fake: Installed, site: FakeSite, said: str, body: str) -> None:
    site.plugin(
        "schedulers",
        "bad",
        f"class Bad(Policy):\n    def key(self, request):\n{indent(dedent(body), ' ' * 8)}\n\n"
        "@hookimpl\ndef enginebay_register_schedulers():\n    return [SchedulerPlugin(name='bad', factory=Bad)]\n",
    )
    with LLM(fake.config(), sets=("scheduler.use=bad",)) as llm:
        with pytest.raises(PolicyFailed) as caught:
            llm.generate("hi", SamplingParams(max_tokens=3))
        assert str(caught.value).startswith(f"policy bad_pkg_plugin.Bad: key() raised {said}. The engine stops, ")
        with pytest.raises(EnginebayError) as again:
            llm.stats()
        assert str(again.value) == str(caught.value)


def test_what_nobody_expected_is_told_too(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any) -> Any:
        raise GeneratorExit("mine")

    with LLM(fake.config()) as llm:
        monkeypatch.setattr("enginebay.engine.progress.Progress.look", lambda self, flight: leave(self))
        with pytest.raises(EnginebayError) as caught:
            llm.generate("hi", SamplingParams(max_tokens=3))
        assert str(caught.value) == "the engine stopped: GeneratorExit: mine"


def test_status_says_the_size_of_the_cache_before_the_first_step_and_after_a_reset(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        assert llm.status()["kv_blocks"] == "0 of 256 in use, 0 with cached content"
        llm.generate("x" * 64, SamplingParams(max_tokens=3, ignore_eos=True))
        assert llm.status()["kv_blocks"] == "0 of 256 in use, 4 with cached content"
        llm.reset_prefix_cache()
        asked = threading.Event()
        for _ in range(200):  # the engine's thread looks around when it has nothing to do
            if llm.status()["kv_blocks"] == "0 of 256 in use, 0 with cached content":
                break
            asked.wait(0.05)
        else:
            raise AssertionError(llm.status()["kv_blocks"])

"""Whole engines whose worker's thread ends under them: the same answers, on a worker of the next generation."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.config import load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.bringup import BringUp
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import EngineDead, StartFailed, WorkerHung, WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import FinishReason, PluginIdentity, PluginsLoaded, RequestOutput
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay_uni.executor import UniExecutor
from support.fake_engine import DEFAULT, FakeRunner
from support.fake_engines import Installed
from support.spans import recorded

PROMPTS = {"a": b"say:abcdef", "b": b"a prompt of some length", "c": b"say:xy"}
EXPECTED = {"a": "abcdef", "b": DEFAULT[:8], "c": "xy"}


def planned(fake: Installed, host: PluginHost, *sets: str, **options: Any) -> Plan:
    return plan(load(fake.config(**options), sets=sets, environ={}), host)


@pytest.fixture
def start_core(fake: Installed) -> Iterator[Callable[..., EngineCore]]:
    """Starts cores, and stops them at the end."""
    cores: list[EngineCore] = []

    def started(*sets: str, host: PluginHost | None = None, **options: Any) -> EngineCore:
        host = host or PluginHost()
        cores.append(start(planned(fake, host, *sets, **options), system_runtime(seed=0), host))
        return cores[-1]

    yield started
    for core in cores:
        core.stop()


def executor_of(core: EngineCore) -> UniExecutor:
    executor = core._parts.executor
    assert isinstance(executor, UniExecutor)
    return executor


def kill(core: EngineCore) -> None:
    """Break the line to the worker, as no caller can: its loop ends with an error, and its thread with it."""
    session = executor_of(core)._session
    assert session is not None
    session._ours.send(b"not an envelope")


def add_all(core: EngineCore) -> None:
    for request_id, prompt in PROMPTS.items():
        core.add_request(
            Ask(request_id=request_id, prompt_token_ids=tuple(prompt), params=SamplingParams(max_tokens=8))
        )


def run(
    core: EngineCore, before: Callable[[int], None] = lambda step: None, said: Sequence[RequestOutput] = ()
) -> dict[str, str]:
    """Steps until all have ended; their texts, after what was ``said``. ``before`` is called before each."""
    texts: dict[str, str] = {}
    lengths = {output.request_id: len(output.token_ids) for output in said}
    step = 0
    while core.has_work():
        before(step)
        step += 1
        for output in core.step()[0]:
            assert output.offset == lengths.get(output.request_id, 0)
            lengths[output.request_id] = output.offset + len(output.token_ids)
            texts[output.request_id] = texts.get(output.request_id, "") + output.text
            assert output.finish_reason is not FinishReason.ERROR, output.error
    return texts


@pytest.mark.parametrize("step", range(8))
def test_a_worker_that_ends_at_any_step(start_core: Callable[..., EngineCore], step: int) -> None:  # R1, for a thread
    core = start_core()
    add_all(core)
    assert run(core, lambda now: kill(core) if now == step else None) == EXPECTED
    assert core._parts.generation.current == 1
    scheduler = core.stats().scheduler
    assert scheduler.num_free_blocks == scheduler.num_blocks == 256


def test_a_worker_that_ends_again_and_again(start_core: Callable[..., EngineCore]) -> None:  # R2
    core = start_core("recovery.longest_wait=0", "recovery.max_restarts=100", "recovery.max_restarts_in_all=100")
    add_all(core)
    assert run(core, lambda step: kill(core) if step % 3 == 2 else None) == EXPECTED
    assert core._parts.generation.current >= 4
    alive = [thread.name for thread in threading.enumerate() if thread.name.startswith("enginebay-uni-")]
    assert len(alive) <= 4, alive  # the one in force, and one that is just ending


def test_clients_notice_nothing(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.01)) as llm:
        core = llm._front.client._cores[0]
        struck_at: list[int] = []

        def strike() -> None:
            while (committed := llm.stats().committed_tokens) < 40:
                time.sleep(0.005)
            struck_at.append(committed)
            kill(core)

        thread = threading.Thread(target=strike)
        thread.start()
        answers = llm.generate(["say:" + "x" * n for n in range(20, 40)], SamplingParams(max_tokens=64))
        thread.join()
        assert [answer.text for answer in answers] == ["x" * n for n in range(20, 40)]
        assert struck_at
        assert core._parts.generation.current == 1
        assert any(answer.usage.recomputed_tokens for answer in answers)
        assert llm.generate("say:and on")[0].text == "and on"


def test_a_report_is_of_the_worker_that_it_names(start_core: Callable[..., EngineCore]) -> None:  # X4
    core = start_core()
    add_all(core)
    session = executor_of(core)._session
    assert session is not None
    first = session.incarnation
    generations: list[int] = []

    def report(step: int) -> None:
        generations.append(core._parts.generation.current)
        named = {1: "a stranger", 3: first, 5: first}.get(step)
        if named is not None:
            lost = WorkerExit(rank=0, incarnation=named, signal=11)
            core._parts.executor.context.worker_exited(lost)

    assert run(core, report) == EXPECTED
    assert generations == [0, 0, 0, 0, *[1] * (len(generations) - 4)]
    assert len(generations) > 6


def test_an_executor_that_cannot_be_restarted_is_the_end(fake: Installed) -> None:  # X4
    host = PluginHost()
    one = planned(fake, host)
    fixed = dataclasses.replace(one.executor.plugin.capabilities, restartable=False)
    plugin = dataclasses.replace(one.executor.plugin, capabilities=fixed)
    core = start(
        dataclasses.replace(one, executor=dataclasses.replace(one.executor, plugin=plugin)),
        system_runtime(seed=0),
        host,
    )
    try:
        session = executor_of(core)._session
        assert session is not None
        lost = WorkerExit(rank=0, incarnation=session.incarnation, signal=11)
        core._parts.executor.context.worker_exited(lost)
        with pytest.raises(WorkerLost, match=r"^the engine stopped: rank 0: the worker ended \(signal 11\)$"):
            core.step()
    finally:
        core.stop()


def test_a_thread_that_hangs_cannot_be_replaced_and_both_are_said(
    start_core: Callable[..., EngineCore], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = start_core("deadlines.step=0.2", "deadlines.stop=0.1")
    hang = threading.Event()
    monkeypatch.setattr(FakeRunner, "execute_model", lambda self, output: hang.wait(60))
    add_all(core)
    try:
        with pytest.raises(WorkerHung) as caught:
            core.step()
    finally:
        hang.set()
    assert re.sub(r"for \d+ s", "for N s", str(caught.value)) == (
        "the engine stopped: no answer to execute_model of step 0 within 0.2 s ([deadlines] step); "
        "rank 0 has been in execute_model of step 0 for N s; the workers could not be started again: "
        "it failed twice in Starting in the same way (WorkerHung): "
        "rank 0: the worker's thread of generation 0 is still in execute_model, so executor 'uni' cannot start "
        "generation 2 beside it: end this process"
    )
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            "plugins",
            "rank 0 loaded runner 'fake' (fake-runner 2.0, options {}), but the engine has runner 'fake'",
        ),
        ("spec", "rank 0 wants another KV cache than the worker before it: load the same model"),
        ("load", "failed in load_model: ValueError: no such file"),
    ],
)
def test_a_worker_that_is_not_the_same_is_refused(
    start_core: Callable[..., EngineCore], monkeypatch: pytest.MonkeyPatch, spoil: str, said: str
) -> None:
    core = start_core()
    add_all(core)
    first, _ = core.step()
    if spoil == "plugins":
        call = BringUp._call

        def other(self: BringUp, asked: Any, expected: Any) -> Any:
            theirs = PluginIdentity(kind="runner", name="fake", package="fake-runner", version="2.0")
            return [PluginsLoaded(plugins=(theirs,))] if expected is PluginsLoaded else call(self, asked, expected)

        monkeypatch.setattr(BringUp, "_call", other)
    elif spoil == "spec":
        spec = FakeRunner.kv_cache_spec

        def bigger(self: FakeRunner) -> Any:
            (group,) = spec(self).groups
            return type(spec(self))(
                groups=(type(group)(layers=(0, 1), block_size=group.block_size, bytes_per_block=9),)
            )

        monkeypatch.setattr(FakeRunner, "kv_cache_spec", bigger)
    else:

        def missing(self: FakeRunner) -> None:
            raise ValueError("no such file")

        monkeypatch.setattr(FakeRunner, "load_model", missing)
    kill(core)
    with pytest.raises(WorkerLost if spoil == "spec" else StartFailed) as caught:
        run(core, said=first)
    message = str(caught.value)
    assert message.startswith("the engine stopped: rank 0: the worker")
    assert "; the workers could not be started again: " in message
    assert said in message
    assert caught.value.exit_code == (4 if spoil == "spec" else 3)
    assert type(core.death()) is type(caught.value)
    assert not executor_of(core).health().alive


def test_a_request_that_fails_every_step_is_the_death_after_the_third(fake: Installed) -> None:  # E2
    with LLM(fake.config()) as llm:
        with pytest.raises(EngineDead) as caught:
            llm.generate(["say:hello", "crash"])
        assert "failed in execute_model: ValueError: asked to crash" in str(caught.value)
        assert llm._front.client._cores[0]._parts.generation.current == 2


def test_observers_and_the_trace_are_told_of_the_new_worker(
    start_core: Callable[..., EngineCore], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, told = PluginHost(), []
    monkeypatch.setattr(host.hooks, "worker_started", lambda worker: told.append(worker.incarnation))
    with recorded(monkeypatch) as spans:
        core = start_core(host=host)
        add_all(core)
        assert run(core, lambda step: kill(core) if step == 2 else None) == EXPECTED
        first, second = spans.named("executor.launch")
        assert spans.children(second) == ["worker.init"]
    assert dict(second.attributes or {}) == {"enginebay.world_size": 1, "enginebay.generation": 1}
    assert first.context != second.context
    assert len(set(told)) == 2

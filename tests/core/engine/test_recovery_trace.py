"""Every recovery is one trace: its parts, what it says of the cause, what it links to, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams, tracing
from enginebay.config import load
from enginebay.engine.core import EngineCore
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.errors import EnginebayError, WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import Envelope, ExecuteModel, Replies
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay.status.restarts import RestartRules
from enginebay.telemetry import SpanRecord, read_spans
from enginebay.transport import decode_call
from support.fake_engine import FakeRunner
from support.fake_engines import Installed
from support.mortal import PROMPTS, Mortal, answered, deadly
from support.spans import recorded
from support.tiny_models import make_model
from support.traces import Trace, recoveries, written

Disturb = Callable[[Mortal], None]


def traced(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    disturb: Disturb,
    dies: type[EnginebayError] | None = None,
    **parts: Any,
) -> list[SpanRecord]:
    """The spans of a run of three requests that is disturbed so."""
    with recorded(monkeypatch) as spans:
        engine = Mortal(**parts)
        disturb(engine)
        if dies is None:
            engine.run()
        else:
            with pytest.raises(dies):
                engine.run()
        return written(spans, path / "trace.jsonl")


def requests(spans: list[SpanRecord]) -> list[SpanRecord]:
    return [span for span in spans if span.name.startswith("text_completion")]


def linked(trace: Trace, spans: list[SpanRecord]) -> list[SpanRecord]:
    """The spans that the recovery links to."""
    return [span for link in trace.root.links for span in spans if span.span_id == link.span_id]


def test_a_lost_worker_is_one_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R12
    def exits(engine: Mortal) -> None:
        def dying(envelope: Envelope) -> Future[Replies]:
            one = engine.core._parts.roster.incarnations[0]
            engine.core._parts.roster.exited(WorkerExit(rank=0, incarnation=one, signal=9))
            return answered(engine, envelope)

        deadly(engine, lambda engine, envelope: dying(envelope), {5})

    spans = traced(monkeypatch, tmp_path, exits, depth=2)
    (trace,) = recoveries(spans)
    about = dict(trace.root.attributes)
    assert len(about.pop("enginebay.incarnation")) == 32
    assert about == {
        "enginebay.recovery.cause": "worker_lost",
        "enginebay.recovery.phase": "Ready",
        "enginebay.generation": 0,
        "enginebay.recovery.generation_after": 1,
        "enginebay.group": 0,
        "enginebay.rank": 0,
        "enginebay.exit": "SIGKILL",
        "enginebay.exit.signal": 9,
        "enginebay.recovery.steps_void": 2,
        "enginebay.recovery.requests_requeued": 3,
        "enginebay.recovery.tokens_to_recompute": 82,  # of a prefix that two share, for each
    }
    assert (trace.root.status, trace.events()) == ("unset", ["lost"])
    assert trace.root.events[0].attributes["enginebay.reason"] == "rank 0: it ended before it answered"
    assert trace.names(trace.root) == ["request.requeue"]
    failed, void = linked(trace, spans)
    assert (failed.name, failed.status, failed.attributes["error.type"]) == ("engine.step", "error", "worker_lost")
    assert (void.name, void.status, void.attributes["error.type"]) == ("engine.step", "error", "StepVoid")


def test_what_is_computed_again_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A prompt of 17 tokens takes three steps, and each step after them one more token."""
    one = {"a": "say:abcdefghijkl"}
    spans = traced(monkeypatch, tmp_path, lambda engine: deadly(engine, answered, {1}), requests=one)
    assert recoveries(spans)[0].root.attributes["enginebay.recovery.tokens_to_recompute"] == 16
    spans = traced(monkeypatch, tmp_path, lambda engine: deadly(engine, answered, {6}), requests=one)
    assert recoveries(spans)[0].root.attributes["enginebay.recovery.tokens_to_recompute"] == 17 + 4
    assert requests(spans)[0].attributes["enginebay.request.recoveries"] == 1


def test_requests_lead_to_it_and_are_no_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R12
    spans = traced(monkeypatch, tmp_path, lambda engine: deadly(engine, answered, {5, 9}))
    traces = recoveries(spans)
    assert len(traces) == 2
    for one in requests(spans):
        assert one.status == "ok"
        requeued = [event.attributes for event in one.events if event.name == "requeued"]
        ids = [trace.root.trace_id for trace in traces]
        twins = [about["enginebay.recovery.trace_id"] for about in requeued if about]
        assert twins == ids  # and no more where all run again after one ran alone: that is no recovery
        assert [link.trace_id for link in one.links if link.trace_id in ids] == ids
    assert len(requests(spans)) == 3


def _silent(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    return Future()


def _stale(engine: Mortal) -> None:
    def once(output: Any) -> None:
        engine.executor.reply_generation = 77 if output.step == 4 else None

    engine.executor.before = once


CASES = {
    "worker_hung": (lambda engine: deadly(engine, _silent, {4}), "worker_hung"),
    "worker_failed": (lambda engine: engine.fail({4}), "worker_failed"),
    "stale_answer": (_stale, "StepVoid"),
}


@pytest.mark.parametrize("cause", CASES)
def test_other_causes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cause: str) -> None:  # R12
    disturb, error_type = CASES[cause]
    spans = traced(monkeypatch, tmp_path, disturb, step_timeout=7.0)
    (trace,) = recoveries(spans)
    assert trace.root.attributes["enginebay.recovery.cause"] == cause
    assert trace.names(trace.root) == ["request.requeue"]
    (failed,) = linked(trace, spans)
    assert (failed.status, failed.attributes["error.type"]) == ("error", error_type)
    assert {one.status for one in requests(spans)} == {"ok"}


def test_a_loss_between_two_steps_has_no_failed_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reported(engine: Mortal) -> None:
        engine.step()
        engine.report()

    (trace,) = recoveries(traced(monkeypatch, tmp_path, reported))
    assert trace.root.links == ()
    assert trace.root.attributes["enginebay.recovery.steps_void"] == 0


def test_a_trace_of_its_own_whoever_drives_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with recorded(monkeypatch) as spans:
        engine = Mortal()
        deadly(engine, answered, {5})
        with tracing.span("of the user"):
            engine.run()
        (trace,) = recoveries(written(spans, tmp_path / "trace.jsonl"))
    assert trace.root.parent_id == ""


def test_without_a_loss_there_is_none_and_a_death_at_once_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not recoveries(traced(monkeypatch, tmp_path, lambda engine: None))

    def dies(engine: Mortal) -> None:
        deadly(engine, answered, {5})

    spans = traced(monkeypatch, tmp_path, dies, WorkerLost, respawn=None)
    assert not recoveries(spans)
    failed = [span for span in spans if span.name == "engine.step" and span.status == "error"]
    assert [span.attributes["error.type"] for span in failed] == ["worker_lost"]


def test_losses_on_the_way_stay_in_the_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R2, R12
    def again(engine: Mortal) -> None:
        left = [WorkerLost("rank 0: gone again"), WorkerLost("rank 0: and again")]
        deadly(engine, answered, {5})

        def dies() -> None:
            if left:
                raise left.pop(0)

        engine.in_respawn = dies

    (trace,) = recoveries(traced(monkeypatch, tmp_path, again))
    assert trace.events() == ["lost", "lost", "lost"]
    said = [event.attributes for event in trace.root.events]
    assert [
        (one["enginebay.recovery.phase"], one["enginebay.generation"], one["enginebay.reason"]) for one in said
    ] == [
        ("Ready", 0, "rank 0: it ended before it answered"),
        ("Starting", 1, "rank 0: gone again"),
        ("Starting", 2, "rank 0: and again"),
    ]
    about = trace.root.attributes
    assert (about["enginebay.generation"], about["enginebay.recovery.phase"]) == (0, "Ready")
    assert (about["enginebay.recovery.generation_after"], trace.root.status) == (3, "unset")


def test_waits_are_spans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spans = traced(monkeypatch, tmp_path, lambda engine: deadly(engine, answered, {5, 7}), rules=RestartRules())
    first, second = recoveries(spans)
    assert first.names(first.root) == ["request.requeue"]
    assert second.names(second.root) == ["worker.back_off", "request.requeue"]
    assert second.one("worker.back_off").attributes == {"enginebay.restart": 2}
    assert second.one("worker.back_off").status == "unset"


def test_giving_up_is_an_event_and_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R4, R12
    def always(engine: Mortal) -> None:
        deadly(engine, answered, set(range(100)))

    spans = traced(monkeypatch, tmp_path, always, WorkerLost, rules=RestartRules(per_slot=1))
    good, bad = recoveries(spans)
    assert (good.root.status, bad.root.status) == ("unset", "error")
    assert bad.root.attributes["error.type"] == "WorkerLost"
    assert bad.events() == ["lost", "gave_up", "exception"]
    why = bad.root.events[1].attributes["enginebay.reason"]
    assert "more than 1 restart" in why, why
    assert {one.status for one in requests(spans)} == {"error"}


def test_whoever_runs_alone_and_is_convicted_is_an_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R3
    def poison(engine: Mortal) -> None:
        submit = engine.executor.submit

        def dying(envelope: Envelope) -> Future[Replies]:
            call = decode_call(envelope.payload)
            if isinstance(call, ExecuteModel) and "b" in call.scheduler_output.num_scheduled_tokens:
                return answered(engine, envelope)
            return submit(envelope)

        engine.executor.submit = dying  # type: ignore[method-assign]  # a worker that dies of a request

    first, second, third = recoveries(traced(monkeypatch, tmp_path, poison, max_num_batched_tokens=64))
    assert (first.events(), second.events()) == (["lost"], ["lost", "isolated"])
    assert third.events()[:2] == ["lost", "convicted"]
    convicted = third.root.events[1].attributes
    assert convicted["enginebay.request.id"] == "b"
    assert convicted["enginebay.reason"].startswith("the workers were lost each of the three times that it ran")
    assert third.root.status == "unset"
    assert third.root.attributes["enginebay.recovery.requests_requeued"] == len(PROMPTS) - 1


@pytest.fixture
def core(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], EngineCore]]:
    """Starts a whole engine over a worker's thread; it is stopped at the end."""
    cores: list[EngineCore] = []

    def started() -> EngineCore:
        host = PluginHost()
        config = load(fake.config(), sets=["recovery.longest_wait=0", "telemetry.step_every=1000"], environ={})
        cores.append(start(plan(config, host), system_runtime(seed=0), host))
        return cores[-1]

    yield started
    for one in cores:
        one.stop()


def kill(core: EngineCore) -> None:
    """Break the line to the worker, as no caller can."""
    session = core._parts.executor._session  # type: ignore[attr-defined]  # of 'uni'
    session._ours.send(b"not an envelope")


def test_the_parts_of_a_recovery(
    core: Callable[[], EngineCore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # R12
    """The second worker fails as it loads: one trace with two pairs, and the failed one says why."""
    load_model, failing = FakeRunner.load_model, [True]

    def fails_once(self: FakeRunner) -> None:
        if failing:
            raise ValueError(f"no such file, {failing.pop()}")
        load_model(self)

    with recorded(monkeypatch) as spans:
        engine = core()
        from enginebay.engine.admission.admit import Ask

        engine.add_request(
            Ask(request_id="a", prompt_token_ids=tuple(b"say:abcdef"), params=SamplingParams(max_tokens=8))
        )
        engine.step()
        monkeypatch.setattr(FakeRunner, "load_model", fails_once)
        kill(engine)
        while engine.has_work():
            engine.step()
        (trace,) = recoveries(written(spans, tmp_path / "trace.jsonl"))
    assert trace.names(trace.root) == [
        *("worker.reclaim", "worker.respawn"),
        *("worker.reclaim", "worker.respawn"),
        "request.requeue",
    ]
    failed, good = [span for span in trace.spans if span.name == "worker.respawn"]
    assert (failed.status, failed.attributes["error.type"]) == ("error", "WorkerFailed")
    assert (good.status, good.attributes["enginebay.generation"]) == ("unset", 2)
    for respawn in (failed, good):
        assert trace.names(respawn) == ["executor.launch"]
        assert trace.names(trace.below(respawn)[0]) == ["worker.init"]
    (init,) = trace.below(trace.below(good)[0])
    assert {"worker.init_device", "worker.load_model", "worker.allocate_kv_cache"} <= set(trace.names(init))
    lost = [event.attributes["enginebay.recovery.cause"] for event in trace.root.events if event.name == "lost"]
    assert lost == ["worker_lost", "start_failed"]
    assert trace.root.events[1].attributes["enginebay.recovery.phase"] == "Loading"
    assert trace.root.status == "unset"


def killed_under_load(config: dict[str, Any], prompts: list[str], num_workers: int, path: Path) -> list[SpanRecord]:
    """The spans of an engine whose last worker is killed in the middle of these."""
    config = config | {"executor": {"use": "mp"}, "status": {"sinks": []}, "telemetry": {"file": str(path)}}
    with LLM(config) as llm:

        def kill_one() -> None:
            while llm.stats().committed_tokens < 20:
                time.sleep(0.002)
            os.kill(llm.health().workers[-1].incarnation.pid, signal.SIGKILL)

        assert len(llm.health().workers) == num_workers
        thread = threading.Thread(target=kill_one)
        thread.start()
        answers = llm.generate(prompts, SamplingParams(max_tokens=60, ignore_eos=True))
        thread.join()
        assert [len(one.token_ids) for one in answers] == [60] * len(prompts)
    return read_spans(path)


def check_killed(spans: list[SpanRecord], num_workers: int) -> None:
    """One trace with the spans of all processes, and what it is linked with."""
    (trace,) = recoveries(spans)
    assert trace.names(trace.root) == ["worker.reclaim", "worker.respawn", "request.requeue"]
    about = trace.root.attributes
    assert (about["enginebay.recovery.cause"], about["enginebay.exit"]) == ("worker_lost", "SIGKILL")
    assert (about["enginebay.rank"], about["enginebay.exit.signal"]) == (num_workers - 1, 9)
    workers = [span for span in trace.spans if span.name == "worker.init"]
    assert sorted(span.attributes["enginebay.rank"] for span in workers) == list(range(num_workers))
    pids = {span.attributes["process.pid"] for span in workers}
    assert len({trace.root.resource["process.pid"], *pids}) == 1 + num_workers
    assert {span.resource["process.pid"] for span in trace.spans if span.name == "worker.warm_up"} == pids
    failed, *void = linked(trace, spans)
    assert (failed.status, failed.attributes["error.type"]) == ("error", "worker_lost")
    assert about["enginebay.recovery.steps_void"] == 1 + len(void)
    for one in requests(spans):
        assert one.status == "ok"
        (requeued,) = [event for event in one.events if event.name == "requeued"]
        assert requeued.attributes["enginebay.recovery.trace_id"] == trace.root.trace_id


def test_a_killed_process_under_load(fake: Installed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R12
    for name, value in fake.environ().items():
        monkeypatch.setenv(name, value)
    prompts = [f"prompt {number}" for number in range(4)]
    check_killed(killed_under_load(fake.config(step_seconds=0.005), prompts, 1, tmp_path / "trace.jsonl"), 1)


def test_a_process_that_dies_in_its_first_steps_has_told_of_its_start(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exporters send in batches, and what is in one dies with the process."""
    for name, value in fake.environ().items():
        monkeypatch.setenv(name, value)
    script = [{"kind": "kill", "after_calls": 1}, {"kind": "kill", "after_calls": 3}]
    path = tmp_path / "trace.jsonl"
    config = fake.config() | {"executor": {"use": "mp"}, "status": {"sinks": []}, "telemetry": {"file": str(path)}}
    faults = {"extensions": {"faults": {"script": script}}, "recovery": {"longest_wait": 0}}
    with LLM(config | faults) as llm:
        assert [one.text for one in llm.generate(["say:abcdef"])] == ["abcdef"]
    spans = read_spans(path)
    assert len(recoveries(spans)) == 2  # no parent is missing there,
    start = Trace(span for span in spans if span.trace_id == spans[0].trace_id)  # nor here
    assert start.root.name == "engine.start"
    assert len([span for span in spans if span.name == "worker.init"]) == 3


@pytest.mark.soak
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_killed_rank_of_a_real_model_under_load(tmp_path: Path, num_ranks: int) -> None:  # R12
    config = {
        "model": {"path": str(make_model(tmp_path / "llama", "llama"))},
        "parallel": {"tensor_parallel_size": num_ranks},
        "worker": {"threads": 1},
        "cache": {"num_blocks": 256},
    }
    prompts = [f"w{number} w1 w2" for number in range(6)]
    check_killed(killed_under_load(config, prompts, num_ranks, tmp_path / "trace.jsonl"), num_ranks)

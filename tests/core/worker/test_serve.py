"""The worker's loop: every envelope is answered once, in order, whatever a call does; and its spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from enginebay import tracing
from enginebay.errors import ModelError
from enginebay.messages import (
    Ack,
    Call,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    Envelope,
    ExecuteModel,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LoadModel,
    ModelRunnerOutput,
    PluginsLoaded,
    Result,
    SchedulerOutput,
    Shutdown,
    StartPayload,
    StepResult,
    WorkerFailure,
)
from enginebay.runtime import ChannelClosed
from enginebay.transport import DamagedMessage, decode_result, encode, encode_envelope, encode_start_payload
from enginebay.worker import Worker, serve
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


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    LOG.clear()
    BEHAVIOUR.clear()
    yield
    LOG.clear()
    BEHAVIOUR.clear()


class Line:
    """A ``WorkerChannel`` that hands out what it was given, and then is closed."""

    def __init__(self, *frames: bytes | BaseException) -> None:
        self.frames = list(frames)
        self.replies: list[tuple[int, int, Result]] = []
        self.phases: list[str] = []
        self.is_closed = False
        self.on_reply: Callable[[], None] = lambda: None

    def receive(self, deadline: float | None) -> bytes | None:
        if not self.frames:
            return None
        frame = self.frames.pop(0)
        if isinstance(frame, BaseException):
            raise frame
        return frame

    def reply(self, generation: int, call_id: int, payload: bytes) -> None:
        self.on_reply()
        self.replies.append((generation, call_id, decode_result(payload)))

    def heartbeat(self, phase: str) -> None:
        self.phases.append(phase)

    def closed(self) -> bool:
        return self.is_closed

    @property
    def results(self) -> list[Result]:
        return [result for _, _, result in self.replies]


def frames(*calls: Call | bytes, traceparent: str = "") -> list[bytes]:
    return [
        encode_envelope(
            Envelope(
                generation=3,
                call_id=number,
                payload=call if isinstance(call, bytes) else encode(call),
                traceparent=traceparent,
            )
        )
        for number, call in enumerate(calls, 1)
    ]


def run(line: Line) -> None:
    def make(start: StartPayload) -> Worker:
        return Worker(start, host=scripted_host(), make_device=lambda kind: ScriptedDevice("cuda", log=LOG))

    serve(encode_start_payload(payload()), line, make_worker=make)


def step(number: int = 1) -> ExecuteModel:
    return ExecuteModel(scheduler_output=SchedulerOutput(step=number))


def test_calls_are_answered_by_id_and_the_loop_ends_with_shutdown() -> None:
    BEHAVIOUR["execute_model"] = output("a")
    line = Line(*frames(*START, step(), Shutdown(), InitWorker()))
    run(line)
    assert [(generation, call_id) for generation, call_id, _ in line.replies] == [(3, n) for n in range(1, 9)]
    assert line.results[-1] == Ack()
    assert len(line.frames) == 1  # what came after the shutdown was not read
    assert LOG.count("close") == 1
    assert line.phases[:5] == ["idle", "init_worker", "idle", "init_device", "idle"]


def test_a_failed_call_is_told_and_the_next_one_works() -> None:  # X2, X3
    answers: Iterator[ModelRunnerOutput | BaseException] = iter(
        [ValueError("first"), output("a"), SystemExit("second"), output("b")]
    )

    def execute(_: object) -> ModelRunnerOutput:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    BEHAVIOUR["execute_model"] = execute
    line = Line(*frames(*START, step(1), step(2), step(3), step(4)))
    run(line)
    first, good, second, again = line.results[-4:]
    assert isinstance(first, WorkerFailure)
    assert (first.phase, first.error_type, first.message, first.kind) == ("execute_model", "ValueError", "first", "")
    assert "in execute\n    raise answer" in first.traceback
    assert first.pid > 0
    assert first.host
    assert isinstance(good, StepResult)
    assert isinstance(second, WorkerFailure)
    assert (second.error_type, second.message) == ("SystemExit", "second")
    assert isinstance(again, StepResult)
    assert again.output == output("b")


def test_our_own_errors_keep_their_class() -> None:
    class TornWeights(ModelError):
        pass

    BEHAVIOUR["load_model"] = TornWeights("model.safetensors is torn")
    line = Line(*frames(*START[:3]))
    run(line)
    failure = line.results[-1]
    assert isinstance(failure, WorkerFailure)
    assert (failure.phase, failure.error_type, failure.kind) == ("load_model", "TornWeights", "ModelError")
    assert LOG[-2:] == ["close", "empty_cache"]  # the failed start gave back what it took


def test_a_failed_allocation_counts_as_out_of_memory() -> None:
    BEHAVIOUR["initialize_kv_cache"] = MemoryError("40 GiB")
    line = Line(*frames(*START[:5]))
    run(line)
    failure = line.results[-1]
    assert isinstance(failure, WorkerFailure)
    assert (failure.error_type, failure.kind) == ("MemoryError", "OutOfMemory")


def test_a_call_that_cannot_be_read_is_answered() -> None:
    line = Line(*frames(b"\xc1", InitWorker()))
    run(line)
    failure, plugins = line.results
    assert isinstance(failure, WorkerFailure)
    assert (failure.phase, failure.error_type, failure.kind) == ("decode", "DamagedMessage", "EngineDead")
    assert isinstance(plugins, PluginsLoaded)


def test_a_result_that_cannot_cross_is_a_failure() -> None:  # X15
    BEHAVIOUR["execute_model"] = ModelRunnerOutput(annex={"kit": threading.Lock()})  # type: ignore[dict-item]  # the fault under test
    line = Line(*frames(*START, step(1), step(2)))
    BEHAVIOUR["load_model"] = None
    run(line)
    failure = line.results[-1]
    assert isinstance(failure, WorkerFailure)
    assert failure.message.startswith("StepResult holds something that cannot cross to a worker: Encoding objects of")


def test_errors_that_are_hard_to_tell_are_told() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    told = iter([Mute(), ValueError("\ud800 half"), ValueError("x" * 10_000), ValueError()])

    def execute(_: object) -> None:
        raise next(told)

    BEHAVIOUR["execute_model"] = execute
    line = Line(*frames(*START, *(step(n) for n in range(4))))
    run(line)
    messages = [result.message for result in line.results[-4:] if isinstance(result, WorkerFailure)]
    assert messages == [
        "(its message cannot be printed: RuntimeError)",
        "\\ud800 half",
        "x" * 4096 + " …",
        "no message",
    ]


def test_ctrl_c_ends_the_loop_in_good_order() -> None:
    line = Line(*frames(*START), KeyboardInterrupt())
    run(line)
    assert LOG[-2:] == ["close", "empty_cache"]
    LOG.clear()
    BEHAVIOUR["execute_model"] = KeyboardInterrupt()
    line = Line(*frames(*START, step()))
    run(line)
    assert len(line.replies) == len(START)  # the step is not answered: whoever asked is being interrupted too
    assert LOG[-2:] == ["close", "empty_cache"]


def test_the_loop_ends_when_the_engine_is_gone() -> None:
    line = Line(*frames(*START, step()))
    line.on_reply = lambda: (_ for _ in ()).throw(ChannelClosed("gone"))
    run(line)
    assert line.replies == []
    line = Line(*frames(*START))
    line.is_closed = True  # what was queued before the close is not done any more
    run(line)
    assert line.replies == []
    assert LOG == []


def test_a_damaged_envelope_ends_the_worker() -> None:
    with pytest.raises(DamagedMessage, match=r"^3 bytes are not one whole envelope: "):
        run(Line(*frames(*START), b"abc"))
    assert LOG[-2:] == ["close", "empty_cache"]


def test_a_damaged_payload_is_refused() -> None:
    with pytest.raises(DamagedMessage, match="start payload"):
        serve(b"\xc1", Line())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("test"))
    return exporter


PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def tree(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def parent_name(spans: dict[str, ReadableSpan], name: str) -> str | None:
    parent = spans[name].parent
    assert parent is not None
    found = [s.name for s in spans.values() if s.context is not None and s.context.span_id == parent.span_id]
    return found[0] if found else f"{parent.span_id:016x}"


def test_spans_of_the_start(spans: InMemorySpanExporter) -> None:
    run(Line(*frames(*START, traceparent=PARENT)))
    found = tree(spans)
    assert {name: parent_name(found, name) for name in found} == {
        "worker.init": "b" * 16,
        "worker.init_device": "worker.init",
        "worker.init_distributed": "worker.init_device",
        "worker.memory_snapshot": "worker.init_device",
        "worker.load_model": "worker.init",
        "worker.profile": "worker.init",
        "worker.allocate_kv_cache": "worker.init",
        "worker.warm_up": "worker.init",
    }
    attributes = found["worker.init"].attributes
    assert attributes is not None
    assert {key: attributes[key] for key in attributes if key != tracing.PID} == {
        tracing.RANK: 0,
        tracing.LOCAL_RANK: 0,
        tracing.GENERATION: 3,
        tracing.INCARNATION: "w0-abc",
        tracing.DEVICE: "cuda:0",
        tracing.FREE_BYTES: 10 << 30,
        tracing.KV_BLOCKS: 7,
    }
    start, end = found["worker.init"].start_time, found["worker.init"].end_time
    assert start is not None
    assert end is not None
    for name in ("worker.init_device", "worker.warm_up"):  # the parent of all that follows, in time too
        inner_start, inner_end = found[name].start_time, found[name].end_time
        assert inner_start is not None
        assert inner_end is not None
        assert start <= inner_start <= inner_end <= end


def test_a_failed_phase_marks_its_span_and_the_start(spans: InMemorySpanExporter) -> None:
    BEHAVIOUR["load_model"] = ValueError("torn")
    run(Line(*frames(*START[:3], traceparent=PARENT)))
    found = tree(spans)
    for name in ("worker.load_model", "worker.init"):
        assert found[name].status.status_code is StatusCode.ERROR
        assert (found[name].attributes or {})[tracing.ERROR_TYPE] == "ValueError"
    assert found["worker.init_device"].status.status_code is StatusCode.UNSET


def test_a_step_is_recorded_only_when_it_is_asked_for(spans: InMemorySpanExporter) -> None:
    BEHAVIOUR["execute_model"] = output("a")
    line = Line(*frames(*START, step(1)), *frames(step(2), traceparent=PARENT))
    run(line)
    steps = [span for span in spans.get_finished_spans() if span.name == "worker.execute_model"]
    assert [(span.attributes or {})[tracing.STEP_INDEX] for span in steps] == [2]
    assert steps[0].parent is not None
    assert f"{steps[0].parent.span_id:016x}" == "b" * 16


def test_nothing_stays_current_afterwards() -> None:
    run(Line(*frames(*START, traceparent=PARENT)))
    assert trace.get_current_span() is trace.INVALID_SPAN

"""A core for benchmarks: real scheduler, real commit, and a device that answers at once or after an exact time.

A device takes schedules, and draws token 200 for each request that samples; it holds no model and no KV cache.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from enginebay.engine.admission.admit import Ask
from enginebay.engine.commit import DetokenizerFactory, no_text
from enginebay.errors import EnginebayError
from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, NoOptions, StartResult, StartSpec
from enginebay.messages import (
    Envelope,
    ExecuteModel,
    ModelRunnerOutput,
    RankReply,
    Replies,
    RequestOutput,
    SamplingParams,
    SchedulerOutput,
    StepResult,
)
from enginebay.transport import decode_call, encode
from enginebay_fcfs.policy import FirstComeFirstServed
from support.fake_engine import FakeEngine

TOKEN = 200
MAX_TOKENS = 4000

Answer = Callable[[SchedulerOutput], ModelRunnerOutput]


class Known:
    """What a device knows of each request that prefills: how many of its tokens are left."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def draw(self, schedule: SchedulerOutput) -> ModelRunnerOutput:
        """One token for each request whose known tokens are all computed by this step."""
        for request_id in schedule.finished:
            self._left.pop(request_id, None)
        for new in schedule.new:
            self._left[new.request_id] = len(new.token_ids) - new.num_computed_tokens
        counts, left = schedule.num_scheduled_tokens, self._left
        for request_id in [one for one in left if one in counts]:
            left[request_id] -= counts[request_id]
            if left[request_id] <= 0:
                del left[request_id]
        drawn: list[tuple[int, ...]] = [(TOKEN,)] * len(counts)
        if left:
            drawn = [() if request_id in left else (TOKEN,) for request_id in counts]
        return ModelRunnerOutput(request_ids=tuple(counts), sampled_token_ids=tuple(drawn))


class InstantDevice(Executor[NoOptions]):
    """Answers within ``submit``. Nothing is encoded: calls and answers are passed as the objects that they are."""

    def __init__(self, context: ExecutorContext[NoOptions]) -> None:
        super().__init__(
            ExecutorContext(
                options=NoOptions(),
                runtime=context.runtime,
                encode=lambda call: call,  # type: ignore[arg-type, return-value]  # the object stands for its bytes
                unwrap=lambda replies: [reply.payload for reply in replies.replies],
                next_call_id=context.next_call_id,
                generation=context.generation,
            )
        )
        self._known = Known()

    def start(self, spec: StartSpec) -> StartResult:
        return StartResult(workers=())

    def submit(self, envelope: Envelope) -> Future[Replies]:
        call: Any = envelope.payload
        result: Any = StepResult(output=self._known.draw(call.scheduler_output), step=call.scheduler_output.step)
        future: Future[Replies] = Future()
        future.set_result(
            Replies(
                generation=envelope.generation, call_id=envelope.call_id, replies=(RankReply(rank=0, payload=result),)
            )
        )
        return future

    def health(self) -> ExecutorHealth:
        return ExecutorHealth(alive=True)

    def stop(self, deadline: float) -> None:
        pass


class PacedDevice(Executor[NoOptions]):
    """Takes exactly ``seconds`` for each step, one after the other, in a process of its own; through the real codec.

    A step begins when it was sent, or when the one before it is done: what the device waits for in between is its idle
    time. That its process is woken late is none of it. ``compute`` is another device on the other end of the line.
    """

    def __init__(
        self,
        context: ExecutorContext[NoOptions],
        seconds: float,
        compute: Callable[[Connection, float], None] | None = None,
    ) -> None:
        super().__init__(context)
        self.num_steps = 0
        self.idle = 0.0
        fork = multiprocessing.get_context("fork")
        self._line, line = fork.Pipe()
        self._device = fork.Process(target=compute or _compute, args=(line, seconds), daemon=True)
        self._device.start()
        line.close()
        self._pending: deque[tuple[Envelope, Future[Replies]]] = deque()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, spec: StartSpec) -> StartResult:
        return StartResult(workers=())

    def submit(self, envelope: Envelope) -> Future[Replies]:
        future: Future[Replies] = Future()
        self._pending.append((envelope, future))
        self._line.send((time.monotonic(), envelope.payload))
        return future

    def health(self) -> ExecutorHealth:
        return ExecutorHealth(alive=True)

    def stop(self, deadline: float) -> None:
        self._line.send(None)
        self._reader.join(max(0.0, deadline - time.monotonic()))
        self._device.join(max(0.0, deadline - time.monotonic()))

    def _read(self) -> None:
        while (answer := self._line.recv()) is not None:
            idle, payload = answer
            self.idle += idle
            self.num_steps += 1
            envelope, future = self._pending.popleft()
            reply = RankReply(rank=0, payload=payload)
            future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=(reply,)))


def _compute(line: Connection, seconds: float) -> None:
    """The device's process: the answer is ready before the step's time is over."""
    known, done = Known(), 0.0
    while (taken := line.recv()) is not None:
        sent, payload = taken
        call = decode_call(payload)
        assert isinstance(call, ExecuteModel)
        schedule = call.scheduler_output
        answer = encode(StepResult(output=known.draw(schedule), step=schedule.step))
        idle = max(0.0, sent - done) if done else 0.0
        done = max(sent, done) + seconds
        time.sleep(max(0.0, done - time.monotonic()))
        line.send((idle, answer))
    line.send(None)


class Reader:
    """Counts the deltas of one request."""

    def __init__(self) -> None:
        self.num_deltas = 0
        self.failure: EnginebayError | None = None

    def put(self, output: RequestOutput) -> None:
        self.num_deltas += 1

    def fail(self, error: EnginebayError) -> None:
        self.failure = error


def bench_engine(
    max_num_seqs: int,
    device: Callable[[ExecutorContext[NoOptions]], Executor[NoOptions]],
    *,
    detokenizer: DetokenizerFactory = no_text,
    **parts: Any,
) -> FakeEngine:
    """An engine of the sizes that ``sched_vllm.py`` gives its scheduler: 8,192 tokens a step, 60,000 blocks of 16."""
    made = FakeEngine(max_num_seqs=1)
    return FakeEngine(
        policy=FirstComeFirstServed,
        num_blocks=60_000,
        block_size=16,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        detokenizer=detokenizer,
        runtime=made.runtime,
        executor=device(made.executor.context),
        generation=made.generation,
        **parts,
    )


def asks(first: int, count: int, num_prompt_tokens: int = 100) -> list[Ask]:
    """Requests of different prompts, which end after ``MAX_TOKENS`` and never by a stop token."""
    return [
        Ask(
            request_id=str(number),
            prompt_token_ids=tuple((number * 7 + place) % 40_000 for place in range(num_prompt_tokens)),
            params=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
        )
        for number in range(first, first + count)
    ]

"""A device of pipeline stages for benchmarks: each takes an exact time for its part of a step, beside the others."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from enginebay.messages import ExecuteModel, StepResult
from enginebay.transport import decode_call, encode
from support.bench_engine import Known

__all__ = ["Stages"]


@dataclass(frozen=True)
class Stages:
    """The other end of a ``PacedDevice``: ``seconds`` for each stage and step, and ``per_token`` more for each token.

    A step enters a stage when the one before it has left it. It enters the first once all tokens that it computes are
    drawn. What the stages waited for, on the average, is the idle time.
    """

    count: int
    per_token: float = 0.0

    def __call__(self, line: Connection, seconds: float) -> None:
        known, drawn = Known(), dict[str, float]()
        free = [0.0] * self.count
        while (taken := line.recv()) is not None:
            sent, payload = taken
            call = decode_call(payload)
            assert isinstance(call, ExecuteModel)
            schedule = call.scheduler_output
            output = known.draw(schedule)
            answer = encode(StepResult(output=output, step=schedule.step))
            cost = seconds + self.per_token * schedule.total_num_scheduled_tokens
            time_of, idle = max([sent, *(drawn.get(one, 0.0) for one in schedule.num_scheduled_tokens)]), 0.0
            for stage, free_at in enumerate(free):
                idle += max(0.0, time_of - free_at) if free_at else 0.0
                time_of = free[stage] = max(time_of, free_at) + cost
            for request_id, tokens in zip(output.request_ids, output.sampled_token_ids, strict=True):
                if tokens:
                    drawn[request_id] = time_of
            time.sleep(max(0.0, time_of - time.monotonic()))
            line.send((idle / self.count, answer))
        line.send(None)

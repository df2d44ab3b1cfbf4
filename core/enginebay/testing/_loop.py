"""A core in miniature, deterministic: it adds, schedules, executes on a simulated device, commits, and checks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from enginebay.interfaces import BatchConstraints, Scheduler, SchedulerLimits, SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.messages import Committed, EngineRequest, FinishReason, ModelRunnerOutput, SchedulerOutput
from enginebay.scheduling import make_scheduler
from enginebay.testing._loads import Load
from enginebay.testing._rules import StepRules
from enginebay.testing._sim import SimulatedRunner, expected_tokens, is_eos, root_of

PATIENCE = 200
"""So many empty steps in a row, with nothing in flight and requests waiting, mean that the scheduler is stuck."""


class CoreLoop:
    """One scheduler under a simulated core. ``depth`` steps may be scheduled before the first is committed.

    ``now`` is a clock of its own: a hundredth of a second per step. ``schedules`` keeps each step's message as bytes.
    """

    def __init__(
        self,
        plugin: SchedulerPlugin[Any],
        options: Any,
        *,
        limits: SchedulerLimits,
        cache: KVCacheManager,
        constraints: BatchConstraints | None = None,
        depth: int = 1,
        check: bool = True,
    ) -> None:
        self.limits = limits
        self.cache = cache
        self.constraints = constraints or BatchConstraints()
        self.steps = 0
        self.scheduler: Scheduler[Any] = make_scheduler(
            plugin, options, limits=limits, constraints=self.constraints, kv_cache=cache, now=self.now
        )
        self.requests: dict[str, EngineRequest] = {}
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, FinishReason] = {}
        self.schedules: list[bytes] = []
        self.preemptions = 0
        reserved = self.constraints.reserved_blocks
        self.runner = SimulatedRunner(
            num_blocks=cache.num_blocks + reserved, block_size=cache.block_size, reserved_blocks=reserved
        )
        self._rules = StepRules(limits, self.constraints, cache.block_size) if check else None
        self._depth = depth
        self._queue: deque[tuple[SchedulerOutput, ModelRunnerOutput, set[int]]] = deque()
        self._empty = 0

    def now(self) -> float:
        """Seconds of the simulated clock."""
        return self.steps * 0.01

    def add(self, *requests: EngineRequest) -> None:
        """New requests; ids are used once in a loop's life."""
        for request in requests:
            assert request.request_id not in self.requests, f"{request.request_id} was used before"
            self.requests[request.request_id] = request
            self.output[request.request_id] = list(request.committed_token_ids)
            self.runner.roots[request.request_id] = root_of(request)
            self.scheduler.add_request(request)

    def abort(self, *request_ids: str) -> None:
        """End requests from outside, wherever they stand; those that ended already are passed over."""
        for request_id in request_ids:
            if request_id in self.requests and request_id not in self.finished:
                self.finished[request_id] = FinishReason.ABORT
        self.scheduler.finish_requests(request_ids, FinishReason.ABORT)

    def step(self) -> SchedulerOutput:
        """Schedule and execute one step; commit the oldest when the queue is full, or nothing could be scheduled."""
        self.steps += 1
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens or output.finished or output.preempted:
            self._execute(output)
        if len(self._queue) >= self._depth or (self._queue and not output.num_scheduled_tokens):
            done, result, _ = self._queue.popleft()
            self._commit(done, result)
            self._empty = 0
        elif not output.num_scheduled_tokens and self.unfinished:
            self._empty += 1
            assert self._empty < PATIENCE, (
                f"stuck: {PATIENCE} empty steps in a row, and unfinished are {self.unfinished[:10]}; "
                f"{self.cache.num_free_blocks} of {self.cache.num_blocks} blocks are free"
            )
        return output

    def run(self, max_steps: int = 50_000) -> None:
        """Step until nothing is left, then check that it is quiet."""
        for _ in range(max_steps):
            if not self._queue and not self.scheduler.has_requests():
                break
            self.step()
        else:
            raise AssertionError(f"after {max_steps} steps unfinished are {self.unfinished[:10]}")
        self.check_quiet()

    def run_load(self, load: Load) -> None:
        """Play a random load to its end."""
        last = max((*load.arrivals, *load.aborts))
        for step in range(last + 1):
            self.add(*load.arrivals.get(step, ()))
            self.abort(*load.aborts.get(step, ()))
            self.step()
        self.run()

    @property
    def unfinished(self) -> list[str]:
        """Ids that have not ended."""
        return [request_id for request_id in self.requests if request_id not in self.finished]

    @property
    def num_unfinished(self) -> int:
        """How many have not ended."""
        return len(self.requests) - len(self.finished)

    def check_quiet(self) -> None:
        """Everything ended once with the right tokens, all blocks are free, and all counters are zero."""
        assert not self.unfinished, f"never ended: {self.unfinished[:10]}"
        for request_id, request in self.requests.items():
            expected = expected_tokens(request, self.limits.max_model_len)
            if self.finished[request_id] is FinishReason.ABORT:
                expected = expected[: len(self.output[request_id])]
            assert self.output[request_id] == expected, f"{request_id} put out other tokens than undisturbed"
        stats = self.scheduler.make_stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0), f"nothing is left, and the statistics say {stats}"
        free, total = self.cache.num_free_blocks, self.cache.num_blocks
        assert free == total, f"{total - free} blocks of {total} were never given back"

    def _execute(self, output: SchedulerOutput) -> None:
        self.schedules.append(msgspec.msgpack.encode(output))
        busy = {block for _, _, written in self._queue for block in written}
        early = busy.intersection(_handed_out(output))
        assert not early, f"blocks {sorted(early)} are handed out while a step in flight may still write to them"
        if self._rules is not None:
            self._rules.before(output, self.runner)
        result = self.runner.execute(output)
        self.preemptions += len(output.preempted)
        if self._rules is not None:
            self._rules.after(output, self.runner, self.scheduler.make_stats().num_waiting)
        if output.num_scheduled_tokens:
            self._queue.append((output, result, self.runner.written))

    def _commit(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        token_ids: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for request_id, drawn in zip(result.request_ids, result.sampled_token_ids, strict=True):
            if not drawn or request_id in self.finished:
                continue
            token_ids[request_id] = drawn
            self.output[request_id] += drawn
            reason = self._end(self.requests[request_id], self.output[request_id])
            if reason is not None:
                finished[request_id] = self.finished[request_id] = reason
        self.scheduler.update_from_output(output, Committed(token_ids=token_ids, finished=finished))

    def _end(self, request: EngineRequest, tokens: Sequence[int]) -> FinishReason | None:
        if is_eos(tokens[-1]) and not request.params.ignore_eos:
            return FinishReason.STOP
        total = len(request.prompt_token_ids) + len(tokens)
        if len(tokens) >= request.params.max_tokens or total >= self.limits.max_model_len:
            return FinishReason.LENGTH
        return None


def _handed_out(output: SchedulerOutput) -> list[int]:
    """Every block that this step's message gives to somebody."""
    given = [new.block_ids for new in output.new]
    given += [resumed.block_ids for resumed in output.resumed]
    given += [running.new_block_ids for running in output.running]
    return [block for groups in given for group in groups for block in group]

"""A core in miniature, deterministic: it adds, schedules, executes on a simulated device, commits, and checks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from enginebay.interfaces import BatchConstraints, Propose, Scheduler, SchedulerLimits, SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    ModelRunnerOutput,
    NewRequest,
    ResumedRequest,
    SchedulerOutput,
)
from enginebay.scheduling import make_scheduler
from enginebay.testing._loads import Load
from enginebay.testing._rules import StepRules
from enginebay.testing._sim import SimulatedRunner, expected_tokens, is_eos, root_of

PATIENCE = 200
"""So many empty steps in a row, with nothing in flight and requests waiting, mean that the scheduler is stuck."""


class CoreLoop:
    """One scheduler under a simulated core. ``depth`` steps may be scheduled before the first is committed.

    ``now`` is a clock of its own: a hundredth of a second per step. ``schedules`` keeps each step's message as bytes.
    ``propose`` guesses tokens, as for ``make_scheduler``; the constraints' ``max_tokens_per_step`` must allow it.
    ``num_stages`` is the context's: the simulated device itself has no stages.
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
        propose: Propose | None = None,
        num_stages: int = 1,
    ) -> None:
        self.limits = limits
        self.cache = cache
        self.constraints = constraints or BatchConstraints()
        self.steps = 0
        self.scheduler: Scheduler[Any] = make_scheduler(
            plugin,
            options,
            limits=limits,
            constraints=self.constraints,
            kv_cache=cache,
            now=self.now,
            propose=propose,
            num_stages=num_stages,
        )
        self.requests: dict[str, EngineRequest] = {}
        self.output: dict[str, list[int]] = {}
        self._choices: list[EngineRequest] = []
        self.finished: dict[str, FinishReason] = {}
        self.schedules: list[bytes] = []
        self.preemptions = 0
        self.num_proposed = 0
        self.num_accepted = 0
        reserved = self.constraints.reserved_blocks
        self.runner = SimulatedRunner(
            num_blocks=cache.num_blocks + reserved, block_size=cache.block_size, reserved_blocks=reserved
        )
        self._rules = StepRules(limits, self.constraints, cache.block_size) if check else None
        self._depth = depth
        self._speculates = propose is not None
        self._queue: deque[tuple[SchedulerOutput, ModelRunnerOutput, set[int], bytes]] = deque()
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
            if request.parent_id:
                self._choices.append(request)
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
            done, result, _, sent = self._queue.popleft()
            self._commit(done, result)
            assert msgspec.msgpack.encode(done) == sent, f"the message of step {done.step} was changed once it was sent"
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
        sent = msgspec.msgpack.encode(output)
        self.schedules.append(sent)
        busy = {block for _, _, written, _ in self._queue for block in written}
        early = busy.intersection(_handed_out(output))
        assert not early, f"blocks {sorted(early)} are handed out while a step in flight may still write to them"
        self._check_told(output)
        if self._rules is not None:
            undecided = {r for done, *_ in self._queue for r in done.num_scheduled_tokens} if self._speculates else ()
            self._rules.before(output, self.runner, undecided)
        result = self.runner.execute(output)
        self.preemptions += len(output.preempted)
        self.num_proposed += output.num_draft_tokens
        if self._rules is not None:
            self._rules.after(output, self.runner, self._num_others())
        if output.num_scheduled_tokens:
            self._queue.append((output, result, self.runner.written, sent))

    def _num_others(self) -> int:
        """Requests that wait and could start, where it counts whether there are any.

        Choices that may wait for the first one's prompt could not, so they keep nobody short.
        """
        if not self.limits.long_prefill_token_threshold:
            return 0
        self._choices = [one for one in self._choices if one.request_id not in self.finished]
        first = {one.parent_id for one in self._choices if one.choice == 0 and not self.output[one.request_id]}
        known = self.runner.live
        held = sum(one.choice > 0 and one.parent_id in first and one.request_id not in known for one in self._choices)
        return self.scheduler.make_stats().num_waiting - held

    def _commit(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        token_ids: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for request_id, drawn in zip(result.request_ids, result.sampled_token_ids, strict=True):
            if not drawn or request_id in self.finished:
                continue
            token_ids[request_id], reason = self._take(request_id, drawn)
            self.num_accepted += len(drawn) - 1
            if reason is not None:
                finished[request_id] = self.finished[request_id] = reason
        committed = Committed(token_ids=token_ids, finished=finished)
        told = msgspec.msgpack.encode(committed)
        self.scheduler.update_from_output(output, committed)
        assert msgspec.msgpack.encode(committed) == told, f"what was committed of step {output.step} was changed"
        token_ids.clear()  # whoever kept it finds it empty, as one who keeps a message in the engine may
        finished.clear()

    def _check_told(self, output: SchedulerOutput) -> None:
        """Whatever the runner is told of a request's tokens was committed, and computed where that is asked."""
        entries: tuple[NewRequest | ResumedRequest, ...] = (*output.new, *output.resumed)
        for entry in entries:
            known = (*self.requests[entry.request_id].prompt_token_ids, *self.output[entry.request_id])
            cached = entry.num_computed_tokens
            assert self.constraints.prefix_caching or not cached, (
                f"{cached} tokens of {entry.request_id} are taken from the cache, and the runner cannot"
            )
            assert entry.token_ids == known, (
                f"the runner is told of tokens of {entry.request_id} that were never committed: it ends in "
                f"{list(entry.token_ids[-5:])}, and is to end in {list(known[-5:])}"
            )

    def _take(self, request_id: str, drawn: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Make drawn tokens exist until one ends the request."""
        output, reason = self.output[request_id], None
        taken: list[int] = []
        for token in drawn:
            taken.append(token)
            output.append(token)
            reason = self._end(self.requests[request_id], output)
            if reason is not None:
                break
        return tuple(taken), reason

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

"""Drives one runner by hand: plays the scheduler in a few lines, with every decision in the hands of the test.

Blocks, chunks, preemptions and prefix hits are what the caller says; the messages are those of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from enginebay.interfaces import AsyncModelRunnerOutput, ModelRunner
from enginebay.kvcache import NULL_BLOCK, GroupSpec
from enginebay.messages import (
    GrammarOutput,
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    ResumedRequest,
    RunningRequest,
    SamplingParams,
    SchedulerOutput,
    TokenLogprob,
)

__all__ = ["RunnerDriver"]


@dataclass
class _Request:
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    choice: int
    state: str = "new"
    """"new", "running", "parked" (preempted), or "done"."""
    blocks: list[list[int]] = field(default_factory=list)
    computed: int = 0
    told: int = 0
    """How many blocks of each group the runner knows of."""

    @property
    def generated(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class RunnerDriver:
    """One runner and the requests on it. ``shuffle`` deals the blocks out in a random order of that seed.

    ``num_blocks``: of each of the runner's KV groups, which share them all. With ``trim`` a request's blocks that fell
    out of a window come back after each step, as the engine does it, and the null block stands in their place.
    ``faults``, ``logprobs`` and ``prompt_logprobs`` collect what the runner told of each request, in order.
    """

    def __init__(
        self,
        runner: ModelRunner[Any],
        *,
        num_blocks: int,
        block_size: int,
        trim: bool = False,
        shuffle: int | None = None,
        generation: int = 0,
    ) -> None:
        self.runner = runner
        self.generation = generation
        self.block_size = block_size
        self.requests: dict[str, _Request] = {}
        self.faults: dict[str, str] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[str, list[PromptLogprobs]] = {}
        self._windows = [group.window for group in runner.kv_cache_spec().groups] or [None]
        self._trim = trim
        self._free = list(range(NULL_BLOCK + 1 if trim else 0, num_blocks * len(self._windows)))
        if shuffle is not None:
            Random(shuffle).shuffle(self._free)  # noqa: S311  # no secret: a test's order of blocks
        self._users: dict[int, int] = {}
        self._finished: list[str] = []
        self._preempted: list[str] = []
        self._step = 0

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        seed: int = 0,
        choice: int = 0,
        shares: str | None = None,
        shared_blocks: int = 0,
    ) -> None:
        """Add a request; with ``shares``, its first ``shared_blocks`` blocks are that other request's: a prefix hit."""
        request = _Request(list(prompt), len(prompt), params or SamplingParams(max_tokens=8), seed, choice)
        request.blocks = [[] for _ in self._windows]
        if shares is not None:
            for group, blocks in enumerate(request.blocks):
                blocks.extend(self.requests[shares].blocks[group][:shared_blocks])
                for block in blocks:
                    self._users[block] += 1
            request.computed = shared_blocks * self.block_size
        self.requests[request_id] = request

    def preempt(self, request_id: str) -> None:
        """Take the request's blocks; the next step that schedules it resumes it from its first token."""
        request = self.requests[request_id]
        assert request.state == "running", f"{request_id} is {request.state}"
        self._give_back(request)
        request.state = "parked"
        self._preempted.append(request_id)

    def abort(self, request_id: str) -> None:
        """End the request, in whatever state it is."""
        request = self.requests[request_id]
        if request.state != "new":
            self._finished.append(request_id)
        self._give_back(request)
        request.state = "done"

    def step(
        self,
        counts: Mapping[str, int],
        *,
        drafts: Mapping[str, Sequence[int]] | None = None,
        grammar: GrammarOutput | None = None,
    ) -> dict[str, tuple[int, ...]]:
        """Run one step with this many tokens of each request, in this order; what each drew.

        ``drafts`` are proposals behind the last known token of running requests; ``counts`` has them in it. The
        requests of ``grammar`` draw under its masks, which the runner is told once it has computed the step.
        """
        drafts = drafts or {}
        new: list[NewRequest] = []
        running: list[RunningRequest] = []
        resumed: list[ResumedRequest] = []
        for request_id, count in counts.items():
            request = self.requests[request_id]
            self._ensure_blocks(request, request.computed + count)
            blocks = tuple(tuple(group) for group in request.blocks)
            if request.state == "new":
                new.append(
                    NewRequest(
                        request_id=request_id,
                        token_ids=tuple(request.token_ids),
                        num_prompt_tokens=request.num_prompt_tokens,
                        params=request.params,
                        seed=request.seed,
                        choice=request.choice,
                        block_ids=blocks,
                        num_computed_tokens=request.computed,
                    )
                )
            elif request.state == "parked":
                resumed.append(
                    ResumedRequest(
                        request_id=request_id,
                        token_ids=tuple(request.token_ids),
                        block_ids=blocks,
                        num_computed_tokens=request.computed,
                    )
                )
            else:
                more = tuple(group[request.told :] for group in blocks)
                running.append(
                    RunningRequest(
                        request_id=request_id,
                        num_computed_tokens=request.computed,
                        new_block_ids=more if any(more) else (),
                        draft_token_ids=tuple(drafts.get(request_id, ())),
                    )
                )
            request.state = "running"
            request.told = len(request.blocks[0])
        output = SchedulerOutput(
            step=self._step,
            generation=self.generation,
            new=tuple(new),
            running=tuple(running),
            resumed=tuple(resumed),
            finished=tuple(self._finished),
            preempted=tuple(self._preempted),
            num_scheduled_tokens=dict(counts),
            constrained=() if grammar is None else tuple(dict.fromkeys(grammar.request_ids)),
        )
        self._step += 1
        self._finished, self._preempted = [], []
        return self._take(self._execute(output, grammar), counts, drafts)

    def finish(self) -> None:
        """End all requests, and tell the runner so."""
        for request_id, request in self.requests.items():
            if request.state != "done":
                self.abort(request_id)
        self.step({})

    def run(self, ids: Sequence[str] | None = None, *, chunk: int | None = None) -> dict[str, list[int]]:
        """Step these requests (or all) together until each has its ``max_tokens``; their generated tokens.

        ``chunk`` caps the tokens of one request in a step.
        """
        asked = list(self.requests) if ids is None else list(ids)
        while True:
            counts: dict[str, int] = {}
            for request_id in asked:
                request = self.requests[request_id]
                if request.state == "done" or request_id in self.faults:
                    continue
                if len(request.generated) >= request.params.max_tokens:
                    self.abort(request_id)
                    continue
                left = len(request.token_ids) - request.computed
                counts[request_id] = left if chunk is None else min(left, chunk)
            if not counts:
                return {request_id: self.requests[request_id].generated for request_id in asked}
            self.step(counts)

    def _execute(self, output: SchedulerOutput, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        result = self.runner.execute_model(output)
        assert result is None or not output.constrained, "the runner drew its tokens before it had their masks"
        if result is None:
            result = self.runner.sample_tokens(grammar)
        return result.get_output() if isinstance(result, AsyncModelRunnerOutput) else result

    def _take(
        self, output: ModelRunnerOutput, counts: Mapping[str, int], drafts: Mapping[str, Sequence[int]]
    ) -> dict[str, tuple[int, ...]]:
        assert list(output.request_ids) == list(counts), (
            f"the runner answered for {list(output.request_ids)}, scheduled were {list(counts)}"
        )
        self.faults.update(output.faults)
        for request_id, entries in output.logprobs.items():
            self.logprobs.setdefault(request_id, []).extend(entries)
        for request_id, chunk in output.prompt_logprobs.items():
            self.prompt_logprobs.setdefault(request_id, []).append(chunk)
        drawn = dict(zip(output.request_ids, output.sampled_token_ids, strict=True))
        for request_id, count in counts.items():
            request = self.requests[request_id]
            rejected = len(drafts[request_id]) + 1 - len(drawn[request_id]) if request_id in drafts else 0
            request.computed += count - rejected
            request.token_ids.extend(drawn[request_id])
            if self._trim:
                self._give_back_unseen(request)
        return drawn

    def _ensure_blocks(self, request: _Request, tokens: int) -> None:
        for blocks in request.blocks:
            while len(blocks) * self.block_size < tokens:
                block = self._free.pop()
                self._users[block] = 1
                blocks.append(block)

    def _give_back_unseen(self, request: _Request) -> None:
        """The blocks that no later token of the request sees."""
        for window, blocks in zip(self._windows, request.blocks, strict=True):
            if window is None:
                continue
            for index in range(GroupSpec(self.block_size, "sliding_window", window).first_seen(request.computed)):
                self._give_back_block(blocks[index])
                blocks[index] = NULL_BLOCK

    def _give_back(self, request: _Request) -> None:
        for blocks in request.blocks:
            for block in blocks:
                self._give_back_block(block)
            blocks.clear()
        request.computed = request.told = 0

    def _give_back_block(self, block: int) -> None:
        if self._trim and block == NULL_BLOCK:
            return
        self._users[block] -= 1
        if not self._users[block]:
            self._free.append(block)

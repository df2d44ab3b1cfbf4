"""What every step must keep, checked from outside: from the message to the runner and the runner's own table."""

from __future__ import annotations

from collections.abc import Collection

from enginebay.interfaces import BatchConstraints, SchedulerLimits
from enginebay.messages import SchedulerOutput
from enginebay.testing._sim import SimulatedRunner
from enginebay.worker import Row, ScheduledRow


class StepRules:
    """Checks the steps in order; call ``before`` when one is scheduled, and ``after`` once it is executed."""

    def __init__(self, limits: SchedulerLimits, constraints: BatchConstraints, block_size: int) -> None:
        self._limits = limits
        self._constraints = constraints
        self._block_size = block_size
        self._prefilling: dict[str, None] = {}
        self._streak = 0
        self._could_decode = False
        self._undecided: Collection[str] = ()

    def before(self, output: SchedulerOutput, runner: SimulatedRunner, undecided: Collection[str] = ()) -> None:
        """Remember whether anything could decode when the step began; what it calls finished could not.

        ``undecided`` are requests of which nobody but the runner knows how far they are: they need not decode.
        """
        self._undecided = undecided
        self._could_decode = any(row.request_id not in output.finished for row in self._decodable(runner))

    def after(self, output: SchedulerOutput, runner: SimulatedRunner, num_waiting: int) -> None:
        """Check the step that was just executed; ``num_waiting`` requests wait after it was scheduled."""
        limits, constraints = self._limits, self._constraints
        for request_id in (*output.finished, *output.preempted):
            self._prefilling.pop(request_id, None)
        for request_id in (*(new.request_id for new in output.new), *(row.request_id for row in output.resumed)):
            self._prefilling[request_id] = None
        prefills = [row for row in runner.rows if row.row.request_id in self._prefilling]
        decodes = len(runner.rows) - len(prefills)
        total = output.total_num_scheduled_tokens
        _at_most("tokens in a step", total, limits.max_num_batched_tokens)
        _at_most("tokens in a step (runner)", total, constraints.max_num_batched_tokens)
        for row in runner.rows:
            _at_most("proposals of a request", len(row.draft_token_ids), constraints.max_tokens_per_step - 1)
        running = sum(not row.parked for row in map(runner.table.get, runner.live) if row is not None)
        _at_most("running requests", running, limits.max_num_seqs)
        _at_most("running requests (runner)", running, constraints.max_num_seqs)
        _at_most("prompts in a step", len(prefills), constraints.max_prefills_per_step)
        context = sum(runner.context[row.row.request_id] for row in runner.rows)
        _at_most("tokens of context in a batch", context, constraints.max_batch_context_tokens)
        assert constraints.mixed_prefill_decode or not (prefills and decodes), "a step mixes prompts and decode tokens"
        for row in prefills:
            self._check_chunk(row, num_waiting if not output.preempted else 0)
            if row.samples:
                del self._prefilling[row.row.request_id]
        self._check_streak(bool(prefills), output, runner)

    def _check_chunk(self, row: ScheduledRow, num_waiting: int) -> None:
        limits, constraints = self._limits, self._constraints
        request_id = row.row.request_id
        if not (limits.chunked_prefill and constraints.chunked_prefill):
            assert row.samples, f"the prompt of {request_id} was split, and the runner cannot"
            return
        if not row.samples:
            multiple = constraints.chunk_multiple
            assert row.num_tokens % multiple == 0, f"a chunk of {row.num_tokens} tokens is no multiple of {multiple}"
        if limits.long_prefill_token_threshold and num_waiting:
            bound = max(limits.long_prefill_token_threshold, constraints.chunk_multiple)
            _at_most(f"tokens of the prompt of {request_id} while others wait", row.num_tokens, bound)

    def _check_streak(self, prefill: bool, output: SchedulerOutput, runner: SimulatedRunner) -> None:
        bound = self._constraints.max_consecutive_prefill_steps
        self._streak = self._streak + 1 if prefill and self._could_decode else 0
        if bound is not None and self._streak > bound:
            left_out = [row for row in self._decodable(runner) if row.request_id not in output.num_scheduled_tokens]
            assert not left_out, (
                f"{self._streak} steps in a row held prompts while {left_out[0].request_id} could decode"
            )
            self._streak = 0

    def _decodable(self, runner: SimulatedRunner) -> list[Row]:
        rows = [row for row in map(runner.table.get, runner.live) if row is not None and not row.parked]
        return [
            row
            for row in rows
            if row.request_id not in self._prefilling
            and row.request_id not in self._undecided
            and len(row.token_ids) < min(row.num_prompt_tokens + row.params.max_tokens, self._limits.max_model_len)
            and row.num_computed_tokens < min(len(row.token_ids), len(row.block_ids[0]) * self._block_size)
        ]


def _at_most(what: str, value: int, bound: int | None) -> None:
    assert bound is None or value <= bound, f"{what}: {value}, and the bound is {bound}"

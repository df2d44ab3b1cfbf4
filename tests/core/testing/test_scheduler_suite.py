"""The schedulers' suite catches broken schedulers: each fault by the test that is there for it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from enginebay.interfaces import (
    Kind,
    NoOptions,
    Policy,
    PolicyState,
    RequestView,
    Scheduler,
    SchedulerCapabilities,
    SchedulerContext,
    SchedulerPlugin,
)
from enginebay.kvcache import KVCacheManager
from enginebay.messages import Committed, EngineRequest, FinishReason, SchedulerOutput, SchedulerStats
from enginebay.scheduling import MechanicsScheduler, _line, _record
from enginebay.testing import SchedulerSuite, _scheduler_suite
from enginebay.testing._offer import offer
from support.loop import Arrival

Context = SchedulerContext[NoOptions]


class Whole(Scheduler[NoOptions]):
    """A whole scheduler by delegation; the tests break one method each."""

    def __init__(self, context: Context, policy: type[Policy[NoOptions]] = Arrival) -> None:
        super().__init__(context)
        self.inner = MechanicsScheduler(policy(context), context)

    def add_request(self, request: EngineRequest) -> None:
        self.inner.add_request(request)

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        self.inner.finish_requests(request_ids, status)

    def schedule(self) -> SchedulerOutput:
        return self.inner.schedule()

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        self.inner.update_from_output(scheduler_output, committed)

    def preempt_all(self) -> None:
        self.inner.preempt_all()

    def has_requests(self) -> bool:
        return self.inner.has_requests()

    def make_stats(self) -> SchedulerStats:
        return self.inner.make_stats()


class Forgetful(Whole):
    """Loses a request."""

    def add_request(self, request: EngineRequest) -> None:
        if request.arrival_number != 5:
            super().add_request(request)

    def has_requests(self) -> bool:
        return True


class Deaf(Whole):
    """Does not hear of aborts."""

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        pass


class Choiceless(Whole):
    """Does not say which choice it is."""

    def add_request(self, request: EngineRequest) -> None:
        super().add_request(structs.replace(request, choice=0))


class Reusing(Whole):
    """Takes what is cached, whoever asks."""

    def add_request(self, request: EngineRequest) -> None:
        params = structs.replace(request.params, prompt_logprobs=None)
        super().add_request(structs.replace(request, params=params))


class Leaky(Whole):
    """Keeps a block for itself each time that something is added."""

    def add_request(self, request: EngineRequest) -> None:
        super().add_request(request)
        if self.context.kv_cache.num_free_blocks > 1:
            self.context.kv_cache.pool.take(1)


class Overdrawn(Whole):
    """Takes the budget for a suggestion."""

    def __init__(self, context: Context) -> None:
        limits = replace(context.limits, max_num_batched_tokens=10_000, max_num_seqs=10_000)
        super().__init__(replace(context, limits=limits))


class Unbound(Whole):
    """Does not read what the runner can take."""

    def __init__(self, context: Context) -> None:
        super().__init__(replace(context, constraints=type(context.constraints)()))


class Fickle(Whole):
    """Calls itself deterministic, and is not."""

    made = 0

    def __init__(self, context: Context) -> None:
        type(self).made += 1
        super().__init__(context, Newest if self.made % 2 else Arrival)


class Forgiving(Whole):
    """Says that nobody is there."""

    def make_stats(self) -> SchedulerStats:
        return SchedulerStats(num_running=1)


class Hasty(Whole):
    """Gives blocks back while the step that writes to them is in flight."""

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        state = self.inner._state
        records = [state.requests[request_id] for request_id in request_ids if request_id in state.requests]
        super().finish_requests(request_ids, status)
        for record in records:
            if record.sequence.blocks:
                self.context.kv_cache.free(record.sequence)


class Sequential(Whole):
    """Declares overlap, and has nothing to schedule while a step is in flight."""

    waits = False

    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(step=-1) if self.waits else super().schedule()
        self.waits = bool(output.num_scheduled_tokens) or self.waits
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        super().update_from_output(scheduler_output, committed)
        self.waits = False


class Guessing(Whole):
    """Takes a token in flight for a token, and tells the runner of it."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        resumed = [structs.replace(one, token_ids=(*one.token_ids, -1)) for one in output.resumed]
        return structs.replace(output, resumed=tuple(resumed))


class Hoarder(Whole):
    """Keeps a block back for bad times."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        context.kv_cache.pool.take(1)


class Rewriting(Whole):
    """Writes the next message over the last one."""

    last: SchedulerOutput | None = None

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        if self.last is not None and output.num_scheduled_tokens:
            self.last.num_scheduled_tokens.clear()
            self.last.num_scheduled_tokens.update(output.num_scheduled_tokens)
        self.last = output
        return output


class Thief(Whole):
    """Empties what it is told."""

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        super().update_from_output(scheduler_output, committed)
        committed.token_ids.clear()


class Late(Whole):
    """Keeps what it is told, and reads it when the next step is due."""

    kept: tuple[SchedulerOutput, Committed] | None = None

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        self.kept = scheduler_output, committed

    def schedule(self) -> SchedulerOutput:
        if self.kept is not None:
            super().update_from_output(*self.kept)
            self.kept = None
        return super().schedule()


class Newest(Arrival):
    def key(self, request: RequestView) -> tuple[int]:
        return (-request.arrival_number,)


class Sharing(Whole):
    """Lets blocks be found before the step that computes them is acknowledged."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        for new in output.new:
            sequence = self.inner._state.running[new.request_id].sequence
            self.context.kv_cache.publish(sequence, min(sequence.capacity, sequence.num_tokens))
        return output


_ARGUMENTS = {
    "test_nobody_starves": {"favoured": "shorter"},
    "test_each_constraint_is_kept_by_any_order": {"constraint": "prompts apart"},
}


def run(factory: Callable[[Context], Any], test: str, *, overlap: bool = False, **arguments: str) -> None:
    plugin = SchedulerPlugin(
        name="broken",
        options=NoOptions,
        factory=factory,
        capabilities=SchedulerCapabilities(deterministic_order=True, overlap_safe=overlap),
    )
    suite = SchedulerSuite()
    getattr(suite, test)((plugin, NoOptions()), **(arguments or _ARGUMENTS.get(test, {})))


@pytest.mark.parametrize(
    ("factory", "test", "message"),
    [
        (Forgetful, "test_each_request_finishes_once_within_all_bounds", "unfinished are"),
        (Deaf, "test_abort_takes_effect_at_once", "something ran on"),
        (Leaky, "test_preempt_all_keeps_what_was_put_out", "blocks are still held"),
        (Overdrawn, "test_each_request_finishes_once_within_all_bounds", "and the bound is"),
        (Fickle, "test_same_inputs_same_schedule", "was scheduled in two ways"),
        (Forgiving, "test_longest_admitted_request_finishes_alone", "nothing is left, and the statistics say"),
        (Choiceless, "test_what_a_request_says_of_itself_reaches_the_runner", "not told which choice"),
        (Reusing, "test_what_a_request_says_of_itself_reaches_the_runner", "12 tokens of it are not computed"),
        (Guessing, "test_preempt_all_keeps_what_was_put_out", "that were never committed"),
        (Hoarder, "test_longest_admitted_request_finishes_alone", "stuck: 200 empty steps in a row"),
        (Thief, "test_each_request_finishes_once_within_all_bounds", "what was committed of step 0 was changed"),
        (Late, "test_longest_admitted_request_finishes_alone", "r0"),
    ],
)
def test_each_fault_is_caught(factory: Callable[[Context], Any], test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(factory, test)


@pytest.mark.parametrize("factory", [Hasty, Sharing])
def test_blocks_that_pass_on_too_early_are_caught(factory: Callable[[Context], Any]) -> None:
    with pytest.raises(AssertionError, match="are handed out while a step in flight may still write to them"):
        run(factory, "test_steps_in_flight_lose_and_repeat_nothing", overlap=True)


def test_a_message_that_is_written_again_is_caught() -> None:
    with pytest.raises(AssertionError, match="the message of step 0 was changed once it was sent"):
        run(Rewriting, "test_steps_in_flight_lose_and_repeat_nothing", overlap=True)


def test_overlap_that_is_declared_and_not_had_is_caught() -> None:
    run(Sequential, "test_steps_in_flight_lose_and_repeat_nothing", overlap=True)
    with pytest.raises(AssertionError, match=r"the device was idle 1\d% of the time"):
        run(Sequential, "test_declared_overlap_keeps_the_device_busy", overlap=True)
    run(Sequential, "test_declared_overlap_keeps_the_device_busy")


def test_a_placeholder_that_a_policy_sees_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run(Arrival, "test_no_placeholder_is_seen_as_a_token")
    in_flight = property(lambda view: view._View__record.num_tokens + view._View__record.placeholders)
    monkeypatch.setattr(_record.View, "num_tokens", in_flight)
    with pytest.raises(AssertionError, match=r"\w+\(\) sees \(\d+, \d+\) tokens of r\d+; \d+ are committed"):
        run(Arrival, "test_no_placeholder_is_seen_as_a_token")


# the reserved blocks are the cache's to keep
@pytest.mark.parametrize("constraint", sorted(_scheduler_suite._CONSTRAINTS.keys() - {"reserved blocks"}))
def test_each_constraint_that_is_not_read_is_caught(constraint: str) -> None:
    with pytest.raises(AssertionError):
        run(Unbound, "test_each_constraint_is_kept_by_any_order", constraint=constraint)


def test_a_probe_that_leaves_a_trace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = KVCacheManager.cached_prefix_tokens

    def counting(self: KVCacheManager, request: Any) -> int:
        self.prefix_queries += 1
        return looked(self, request)

    monkeypatch.setattr(KVCacheManager, "cached_prefix_tokens", counting)
    with pytest.raises(AssertionError, match="the probe left a trace"):
        run(Arrival, "test_probe_changes_nothing")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from enginebay.scheduling._line import WaitingLine", "enginebay.scheduling._line.WaitingLine"),
        ("from enginebay.scheduling import _line", "enginebay.scheduling._line"),
        ("import enginebay.kvcache._pool as pool", "enginebay.kvcache._pool"),
    ],
)
def test_private_imports_are_caught(line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "acme_nosy.py").write_text(
        f"from enginebay.interfaces import Policy\nimport enginebay.kvcache\n{line}\n"
    )
    offer(tmp_path, monkeypatch, Kind.SCHEDULER, "nosy", "acme_nosy")
    suite = SchedulerSuite()
    suite.name = "nosy"  # type: ignore[misc]  # as a subclass sets it
    with pytest.raises(AssertionError, match=rf"acme_nosy\.py, line 3: {re.escape(name)}$"):
        suite.test_nothing_private_is_imported()


def test_starvation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shortest(Arrival):
        def key(self, request: RequestView) -> tuple[int]:
            return (request.num_prompt_tokens,)

    run(Shortest, "test_nobody_starves")
    monkeypatch.setattr(_line, "STARVATION_BOUND", 1 << 60)
    with pytest.raises(AssertionError, match="r0 still waits after 10000 shorter requests came after it"):
        run(Shortest, "test_nobody_starves")


class Turns(Arrival):
    """The tenant that began least often goes first; the key is what the tests break."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.started: Counter[str] = Counter()
        self.running: Counter[str] = Counter()

    def group(self, request: RequestView) -> str:
        return request.tenant

    def group_key(self, group: str) -> tuple[float, ...]:
        return (self.started[group],)

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        self.started[request.tenant] += 1
        self.running[request.tenant] += 1
        return True

    def on_finished(self, request: RequestView, reason: FinishReason) -> None:
        self.running[request.tenant] -= 1


class FewestRunning(Turns):
    def group_key(self, group: str) -> tuple[float, ...]:
        return (self.running[group],)


class MostStarted(Turns):
    def group_key(self, group: str) -> tuple[float, ...]:
        return (-self.started[group],)


class Impatient(Turns):
    def group_key(self, group: str) -> tuple[float, ...]:
        return (-self.context.now(),)


@pytest.mark.parametrize("policy", [FewestRunning, MostStarted, Impatient])
def test_a_groups_key_that_falls_is_caught(policy: type[Turns]) -> None:
    run(Turns, "test_a_groups_key_only_grows_while_somebody_waits_in_it")
    with pytest.raises(AssertionError, match=r"^group_key\('\d'\) fell from .* to .* while a request waits in that"):
        run(policy, "test_a_groups_key_only_grows_while_somebody_waits_in_it")


def test_options_that_are_refused_are_one_line_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from enginebay.testing import SchedulerSuite\n\n\n"
        "class TestMine(SchedulerSuite):\n    name = 'fair'\n    options = {'waits': 1}\n"
    )
    words = ["-q", "-p", "no:cacheprovider", "-k", "probe", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert (
        "TestMine: the conformance suite: scheduler 'fair' rejects [scheduler.options]: waits: unknown" in done.stdout
    )
    assert "Traceback" not in done.stdout
    assert "_scheduler_base.py" not in done.stdout
    assert done.returncode == 1


def test_a_sound_whole_scheduler_passes() -> None:
    for test in [name for name in dir(SchedulerSuite) if name.startswith("test_")]:
        if test != "test_nothing_private_is_imported":  # which looks at a package, by its name
            run(Whole, test, overlap=True)

"""The start of an engine's groups: all at once, one root cause when one of them fails, and none left over."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

import msgspec
from opentelemetry import trace

from enginebay import tracing
from enginebay.config import DeadlinesConfig
from enginebay.engine.core import EngineCore
from enginebay.engine.parts import Observers
from enginebay.engine.replicas.gathering import merged
from enginebay.engine.startup.assembly import Alongside, start_in
from enginebay.engine.startup.plan import Plan
from enginebay.engine.startup.supervise import supervise
from enginebay.engine.supervision import Supervision
from enginebay.errors import StartFailed, in_words
from enginebay.interfaces import Executor
from enginebay.messages import RequestSummary, StepReport
from enginebay.plugins import PluginHost
from enginebay.runtime import Runtime
from enginebay.text import Tokenizer

__all__ = ["Growth", "group_plan", "start_groups"]

_log = logging.getLogger(__name__)

_PHASES: Final = 6
"""Calls of a start, each of which may take ``[deadlines] load_model``."""


def group_plan(plan: Plan, index: int) -> Plan:
    """The plan of one of the groups: the same, in its own place."""
    world = msgspec.structs.replace(plan.world, data_parallel_index=index, data_parallel_rank_local=index)
    return dataclasses.replace(plan, world=world)


def start_groups(
    span: trace.Span, plan: Plan, runtime: Runtime, host: PluginHost, tokenizer: Tokenizer
) -> tuple[list[EngineCore], Growth]:
    """Start as many groups as ``[parallel] data_parallel_size`` says, at the same time.

    Returns them with what starts one more. Raises what the first group that failed raised,
    when all that was started has been stopped again.
    """
    supervision = supervise(plan, runtime)
    observers = _SharedObservers(host.hooks, plan.world.data_parallel_size, supervision)
    alongside = Alongside(supervision=supervision, launched=lambda executor: None, observers=observers)
    try:
        if plan.world.data_parallel_size == 1:
            cores = [start_in(span, plan, runtime, host, tokenizer, alongside=alongside)]
        else:
            cores = _start_several(span, plan, runtime, host, tokenizer, alongside)
    except BaseException:
        supervision.stop()
        raise
    growth = Growth(plan, runtime, host, tokenizer, alongside, observers.one_more)
    host.hooks.engine_started(merged([core.in_force for core in cores]))
    return cores, growth


def _start_several(
    span: trace.Span, plan: Plan, runtime: Runtime, host: PluginHost, tokenizer: Tokenizer, alongside: Alongside
) -> list[EngineCore]:
    count = plan.world.data_parallel_size
    starts = _Starts(count, runtime, plan.config.deadlines)
    alongside = dataclasses.replace(alongside, launched=starts.launched)
    for index in range(count):
        its = dataclasses.replace(runtime, entropy=runtime.entropy.branch(f"group {index}"))
        start = functools.partial(start_in, span, group_plan(plan, index), its, host, tokenizer, alongside=alongside)
        starts.begin(index, functools.partial(contextvars.copy_context().run, start))
    return starts.wait()


class Growth:
    """Starts one more group beside those that run; its weights come from one of them, and no file is read.

    ``alongside`` is that of a group whose start is given up by nobody; ``grown`` is called once a group stands.
    """

    def __init__(
        self,
        plan: Plan,
        runtime: Runtime,
        host: PluginHost,
        tokenizer: Tokenizer,
        alongside: Alongside,
        grown: Callable[[], None],
    ) -> None:
        self._plan, self._runtime, self._host, self._tokenizer = plan, runtime, host, tokenizer
        self._alongside, self._grown = alongside, grown

    def another(self, index: int, lender: EngineCore) -> EngineCore:
        """Group ``index``, warm. Raises what its start raises; those that run are as they were."""
        its = dataclasses.replace(self._runtime, entropy=self._runtime.entropy.branch(f"group {index}"))
        with tracing.span(tracing.ENGINE_START) as span:
            core = start_in(
                span,
                group_plan(self._plan if (rebuild := lender.parts.rebuild) is None else rebuild.plan, index),
                its,
                self._host,
                self._tokenizer,
                alongside=self._alongside,
                lender=lender.lender,
            )
        self._grown()
        return core


class _Starts:
    """Starts in threads of their own. The first that fails gives the others up."""

    def __init__(self, count: int, runtime: Runtime, deadlines: DeadlinesConfig) -> None:
        self._runtime = runtime
        self._deadlines = deadlines
        self._cores: list[Future[EngineCore]] = [Future() for _ in range(count)]
        self._over: Future[None] = Future()
        self._failed: list[tuple[int, BaseException]] = []
        self._executors: list[Executor[Any]] = []
        self._given_up = False

    def begin(self, index: int, start: Callable[[], EngineCore]) -> None:
        """Start one group in its thread."""

        def body() -> None:
            try:
                core = start()
            except BaseException as error:
                self._failed.append((index, error))
                self._cores[index].set_exception(error)
                self._end()
            else:
                self._cores[index].set_result(core)
                if all(one.done() for one in self._cores):
                    self._end()

        self._runtime.spawner.thread(f"enginebay-start-{index}", body)

    def launched(self, executor: Executor[Any]) -> None:
        """A group's workers are connected: from here on its executor can be stopped under it."""
        self._executors.append(executor)
        if self._given_up:  # it reads what the one that gives up writes before it reads what is written here
            raise StartFailed("the start was given up, because another group's failed")

    def wait(self) -> list[EngineCore]:
        """All cores, in order; raises the first failure when nothing of the others is left."""
        longest = self._deadlines.start + _PHASES * self._deadlines.load_model + self._deadlines.stop
        try:
            self._runtime.wait(self._over, self._runtime.clock.now() + longest)
        except BaseException:  # Ctrl-C, or a group that keeps none of its deadlines
            self._give_up()
            raise
        if not self._failed:
            now = self._runtime.clock.now()
            return [self._runtime.wait(core, now) for core in self._cores]  # each is there
        self._give_up()
        index, error = self._failed[0]
        error.add_note(f"it was the start of group {index} of {len(self._cores)}; the others were stopped")
        raise error

    def _end(self) -> None:
        try:
            self._over.set_result(None)
        except InvalidStateError:
            return  # it is over already

    def _give_up(self) -> None:
        """Stop the workers of every group, and wait for the starts to fail of it; the cores that stand are stopped."""
        self._given_up = True
        deadline = self._runtime.clock.now() + self._deadlines.stop
        for executor in self._executors:
            try:
                executor.stop(deadline)
            except Exception as error:
                _log.warning("stopping the workers failed: %s", in_words(error))
        by = deadline + self._deadlines.start  # one that is being launched is not stopped under its launch
        for core in self._cores:
            try:
                self._runtime.wait(core, by).stop()
            except Exception:  # noqa: S112  # it failed as well, of the stop, or does not come to its end: told above
                continue


class _SharedObservers:
    """The observers of one engine, told by the cores of all its groups: it stops when the last group does, and its
    supervision then."""

    def __init__(self, inner: Observers, num_groups: int, supervision: Supervision) -> None:
        self._inner = inner
        self._supervision = supervision
        self._running = list(range(num_groups))

    def step_finished(self, report: StepReport) -> None:
        self._inner.step_finished(report)

    def request_finished(self, summary: RequestSummary) -> None:
        self._inner.request_finished(summary)

    def one_more(self) -> None:
        """Another core will tell of its end."""
        self._running.append(len(self._running))

    def engine_stopped(self) -> None:
        if self._running.pop() == 0:  # the last one; a pop is one thread's, as a subtraction is not
            self._supervision.stop()
            self._inner.engine_stopped()

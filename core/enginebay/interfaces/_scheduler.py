"""Schedulers, in two tiers. Most people want the first.

**A policy** decides order, and leaves the rest (token budgets, KV blocks, chunked prefill, preemption, prefix
caching, tokens in flight) to the core's mechanics. Shortest prompt first is::

    class ShortestFirst(Policy[NoOptions]):
        def key(self, request: RequestView) -> tuple[int, int]:
            return (request.num_prompt_tokens, request.arrival_number)

**A whole scheduler** subclasses ``Scheduler`` and does all of it itself. Stop conditions and the ledger are the core's
in both tiers: a scheduler learns of tokens from ``update_from_output`` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from enginebay.interfaces._options import Options
from enginebay.interfaces._runner import BatchConstraints
from enginebay.kvcache import KVCacheManager
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    GrammarOutput,
    SchedulerOutput,
    SchedulerStats,
    StepReport,
)

O = TypeVar("O", bound=Options)


Propose = Callable[[Sequence[int], Sequence[int], int], tuple[int, ...]]
"""From a request's prompt and output to at most so many tokens that could come next; none when it has no guess."""


class RequestView(Protocol):
    """What a policy may read of a request. Nothing here can be written.

    ``num_tokens`` counts prompt and committed tokens, ``num_computed_tokens`` those whose keys and values are in
    the cache; ``arrival`` and ``deadline`` are seconds of the monotonic clock.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def arrival(self) -> float: ...
    @property
    def arrival_number(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def extra(self) -> Mapping[str, bytes]: ...
    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...


class KVCacheView(Protocol):
    """What a policy may ask of the KV cache. Asking changes nothing: no counters, no order of eviction."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...

    def cached_prefix_tokens(self, request: RequestView) -> int:
        """How many leading tokens of the request are in the cache now."""


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """The values in force of ``[scheduler]``, after the runner's constraints were applied.

    ``watermark`` is a share (0 to 1) of the blocks that admission leaves free.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    reserve_whole_prompt: bool = False
    watermark: float = 0.0
    no_evict: bool = False


@dataclass(frozen=True, kw_only=True)
class SchedulerContext(Generic[O]):
    """Everything a scheduler or policy is given. Frozen; a later minor version may add fields.

    ``now()`` is monotonic seconds, agreed among ranks where every rank schedules. ``kv`` is for policies;
    ``kv_cache`` is the manager itself, for whole schedulers: in a policy's own ``context`` it is ``kv`` again, and a
    policy that keeps the manager by another way is refused when it is made.
    ``propose(prompt_token_ids, output_token_ids, at_most)`` guesses up to ``at_most`` next tokens of a request, for the
    runner to verify; None: speculation is off.

    ``num_stages`` pipeline stages can work at the same time, each on a step in flight of its own; 1: there are none, or
    steps do not overlap. A step with a request whose last token is not drawn yet waits for it at its first stage, so a
    whole scheduler keeps them busy by having other requests in each of so many steps in a row.
    """

    options: O
    limits: SchedulerLimits
    constraints: BatchConstraints
    kv: KVCacheView
    kv_cache: KVCacheManager
    now: Callable[[], float]
    propose: Propose | None = None
    num_stages: int = 1


@dataclass(frozen=True, kw_only=True)
class PolicyState:
    """How the step stands when ``admit`` is asked; who is to give way for the request counts as having done so."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    token_budget: int


class Policy(ABC, Generic[O]):
    """Decides which requests go first. The mechanics ask it, and keep every bound whatever it answers.

    Set ``window`` above 0 when keys move with time: ``key`` then picks the first ``window`` waiting requests, and
    ``choose`` picks among those at each admission. A preempted request goes before all that wait, unless
    ``may_overtake_preempted`` is set. An exception raised here stops the engine with its own error.

    These attributes are read once, when the policy has been made, and so is which methods it has: one that ``__init__``
    sets on the policy itself (``self.admit = …``) counts like one of its class, and one that is set later is not seen.

    With ``preempts_running``, ``victim`` is asked for the sake of a waiting request too, when the running line is full
    or blocks are short. Such a policy says None unless ``needed`` is the more urgent one, and sets
    ``may_overtake_preempted``, or else who gave way is the next to start.
    """

    window: int = 0
    may_overtake_preempted: bool = False
    preempts_running: bool = False

    def __init__(self, context: SchedulerContext[O]) -> None:
        looking: Any = context.kv  # a policy looks into the cache; what could write to it is for whole schedulers
        self.context = replace(context, kv_cache=cast("KVCacheManager", looking))

    @abstractmethod
    def key(self, request: RequestView) -> tuple[Any, ...]:
        """The sort key of a waiting request, smallest first; asked once, fixed for life."""

    def group(self, request: RequestView) -> str:
        """The group in which the request waits, such as its tenant; fixed for life. Override it to have groups."""
        return ""

    def group_key(self, group: str) -> tuple[Any, ...]:
        """The sort key of a group in which somebody waits: the smallest is next, and within it the smallest ``key``.

        It may move, and may only grow while the group waits: so a step costs the same however many wait. A policy that
        has groups has no window. Asked when the group's first request comes, and whenever the group comes up.
        """
        return ()

    def choose(self, requests: Sequence[RequestView]) -> int:
        """The index of the request to admit next, of at most ``window`` requests in order of their keys."""
        return 0

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        """The index of the request to preempt so that ``needed`` can run, or None to preempt nobody for it.

        After a None a running ``needed`` waits with what it holds. When so nobody at all could run, the last candidate
        is preempted unasked: the engine would stand still else.
        ``candidates`` are the running requests that may be preempted, in running order, ``needed`` among them
        when it is running. The default is the last one. It is asked until those that it named are enough, and only then
        do they give way: a None, or too few of them, costs nobody its work. For one that waits (``preempts_running``)
        a None stands until another waits first, or others run; a policy with a window is asked at each step.
        """
        return len(candidates) - 1

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        """Whether the request may start in this step; False ends admission for the step.

        Asked last, when there is room for it: a request for which the answer is True starts in this step.
        """
        return True

    def on_scheduled(self, request: RequestView, num_tokens: int) -> None:
        """``num_tokens`` of the request run in this step."""

    def on_output(self, request: RequestView, token_ids: tuple[int, ...]) -> None:
        """These tokens of the request were committed."""

    def on_finished(self, request: RequestView, reason: FinishReason) -> None:
        """The request ended."""

    def on_step(self, report: StepReport) -> None:
        """A step ended."""


class Scheduler(ABC, Generic[O]):
    """Decides everything about a step. Called from one thread.

    Invariants that the conformance kit checks: each request runs to its end exactly once; no step is over a limit or
    a constraint; when nothing is left, every block is free. Each choice of a request comes as a request of its own;
    its ``choice`` goes into ``NewRequest``. One whose ``params.prompt_logprobs`` is set starts at its first token, also
    when it starts again: open its sequence with ``reuse=False``, and the cache finds nothing for it.
    """

    def __init__(self, context: SchedulerContext[O]) -> None:
        self.context = context

    @abstractmethod
    def add_request(self, request: EngineRequest) -> None:
        """A request that has passed every check of the core. Its id is not in use."""

    @abstractmethod
    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        """End these requests from outside (abort, error); ids that are not known are passed over."""

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """The next step. Empty when nothing can run; ``num_computed_tokens`` advances here."""

    @abstractmethod
    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        """What came of a step, oldest first. Requests that ``committed`` calls finished are dropped."""

    @abstractmethod
    def preempt_all(self) -> None:
        """Put every running request back into the waiting line and free its blocks."""

    @abstractmethod
    def has_requests(self) -> bool:
        """Whether anything is unfinished, or ``finished`` ids have yet to be told to the runner."""

    @abstractmethod
    def make_stats(self) -> SchedulerStats:
        """How it stands now."""

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """The masks of constrained requests of this step; None when it has none."""
        return None

    def on_step(self, report: StepReport) -> None:
        """A step ended. Optional."""

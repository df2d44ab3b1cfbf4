"""What an engine core is put together from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from enginebay.engine.admission.admit import AdmissionLimits
from enginebay.engine.agreement import Agreement
from enginebay.engine.cache import CacheSeat
from enginebay.engine.commit import DetokenizerFactory
from enginebay.engine.grammars import Grammars
from enginebay.engine.life import Life
from enginebay.engine.replies import Generation
from enginebay.engine.roster import Roster
from enginebay.engine.watch import WorkerWatch
from enginebay.interfaces import Executor, RunnerCapabilities, Scheduler
from enginebay.messages import RequestSummary, SchedulerStats, StepReport
from enginebay.runtime import Runtime

if TYPE_CHECKING:  # it makes these parts
    from enginebay.engine.swap.rebuild import Rebuild

__all__ = ["CoreParts", "EngineStats", "Observers"]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine stands: unfinished requests, the scheduler's numbers, and counters since the start.

    ``proposed_tokens`` were verified, and ``accepted_tokens`` of them committed; both 0 without speculation.
    ``moved``: requests, each choice counted, that a group went on with which another had begun, or was to begin.
    """

    unfinished: int
    steps: int
    committed_tokens: int
    finished: int
    dropped_replies: int
    scheduler: SchedulerStats
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    moved: int = 0


class Observers(Protocol):
    """The observing hooks that the core calls; the plugin host's ``Hooks`` is one."""

    def step_finished(self, report: StepReport) -> None:
        """A step was committed."""

    def request_finished(self, summary: RequestSummary) -> None:
        """A request ended."""

    def engine_stopped(self) -> None:
        """The engine has given back what it took."""


@dataclass(frozen=True, kw_only=True)
class CoreParts:
    """What assembly puts together. The names of the parts are for messages: "runner 'v1' 1.0".

    ``make_scheduler`` returns an empty scheduler over an empty KV cache: the first one, and another whenever steps in
    flight are void. ``watch`` is what the executor reports deaths to.
    ``max_model_len`` is the longest request in tokens, ``step_timeout``, ``stop_timeout``, ``heartbeat`` are seconds,
    ``depth`` is how many steps may be in flight, ``max_tokens_per_step`` how many tokens the runner may draw for one
    request in one step without proposals, ``num_ranks`` how many workers answer to each. ``grammars`` are
    those of the requests that have one.

    ``roster`` says how the workers stand, and how often they may be started again.
    ``respawn`` is called when a worker is lost or hung and the generation has been raised: it stops what is left of
    the old workers, calls the function that it is given, which waits as long as new ones shall wait, tells ``watch``
    whom to expect, and returns when new ones are warm; None: a lost worker is the engine's end. A ``Lender`` that it
    is given besides is where the weights come from. Raising ``WorkerLost``,
    ``WorkerHung`` or ``StartFailed`` means that the new ones did not come so far, and it may be called again;
    ``NoWayBack`` that none will. With no token committed and no request ended in between, the
    ``max_failed_steps``-th step that a living worker failed is the end.

    ``life`` is shared with ``respawn``, which brings its weights back; ``worker_methods`` are the methods that each
    worker extension declares, ``model_path`` is the folder of the model's own weights. ``call_timeout``,
    ``load_timeout``, ``drain_timeout`` and ``recovery_timeout`` are seconds. ``release`` is called once, when the
    workers were stopped for good: it gives back what was taken for them. ``agreement``: this engine is one of several,
    one on each rank, which compare their schedules through it. ``rebuild`` makes other parts for the same requests;
    None: nothing can be exchanged.
    """

    executor: Executor[Any]
    make_scheduler: Callable[[], Scheduler[Any]]
    runtime: Runtime
    hooks: Observers
    limits: AdmissionLimits
    detokenizer: DetokenizerFactory
    model: str
    scheduler_name: str
    runner_name: str
    eos_token_ids: frozenset[int]
    max_model_len: int
    generation: Generation
    in_force: dict[str, str]
    roster: Roster
    watch: WorkerWatch = field(default_factory=WorkerWatch)
    executor_name: str = "the executor"
    max_tokens_per_step: int = 1
    output_rank: int = 0
    num_ranks: int = 1
    step_timeout: float = 300.0
    stop_timeout: float = 10.0
    heartbeat: float = 5.0
    request_timeout: float | None = None
    step_every: int = 100
    depth: int = 1
    grammars: Grammars = field(default_factory=Grammars)
    respawn: Callable[..., None] | None = None
    release: Callable[[], None] = lambda: None
    max_failed_steps: int = 3
    life: Life = field(default_factory=Life)
    runner_capabilities: RunnerCapabilities = field(default_factory=RunnerCapabilities)
    worker_methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model_path: str = ""
    call_timeout: float = 300.0
    load_timeout: float = 600.0
    drain_timeout: float = 30.0
    recovery_timeout: float = 120.0
    agreement: Agreement | None = None
    cache: CacheSeat = field(default_factory=CacheSeat)
    rebuild: Rebuild | None = None

    def exchange(self, others: CoreParts) -> None:
        """From now on these are the parts, all at once.

        It is the one place where a running core's parts change: each piece of the core holds this object, reads a part
        when it needs it, and keeps none. So nothing has to be told, nothing can be forgotten, and no piece ever sees an
        old part beside a new one. Frozen the class stays: nobody sets a single part.
        """
        vars(self).update(vars(others))

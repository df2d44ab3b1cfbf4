"""How a part is described: a descriptor per plugin, with capabilities as data.

A package offers a scheduler in three places that must agree on one name:

1. the entry point, in its ``pyproject.toml``::

       [project.entry-points."enginebay.schedulers"]
       shortest = "my_package.plugin"

2. the hook, in ``my_package/plugin.py``, which stays light (the factory imports what is heavy)::

       from enginebay.hookspecs import hookimpl
       from enginebay.interfaces import SchedulerContext, SchedulerPlugin

       def _make(context: SchedulerContext[MyOptions]) -> Shortest:
           from my_package.policy import Shortest
           return Shortest(context)

       @hookimpl
       def enginebay_register_schedulers() -> list[SchedulerPlugin[MyOptions]]:
           return [SchedulerPlugin(name="shortest", options=MyOptions, factory=_make)]

3. the config: ``[scheduler] use = "shortest"``.

Executors, runners and status sinks are the same with their own descriptor. Capabilities that are not set mean the
conservative value; a combination that does not fit is refused when the engine is assembled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from enginebay.interfaces._device import Device
from enginebay.interfaces._executor import Executor, ExecutorContext
from enginebay.interfaces._graph import CapturedGraph, GraphContext
from enginebay.interfaces._options import NoOptions, Options
from enginebay.interfaces._runner import BatchConstraints, ModelRunner, RunnerContext
from enginebay.interfaces._scheduler import Policy, Scheduler, SchedulerContext
from enginebay.interfaces._status import StatusSink, StatusSinkContext
from enginebay.interfaces._worker_extension import WorkerExtensionContext
from enginebay.messages import ModelInfo

API_VERSION: tuple[int, int] = (1, 2)
"""The plugin API of this engine. A plugin fits when the major is equal and its minor is not above ours.

1.1 added the sampling parameters beyond top_k, top_p and seed, each of which a runner gets only when its ``features``
say so; log-probabilities in ``ModelRunnerOutput``; several choices of a request (``NewRequest.choice``, of which each
is a request of its own to runners and schedulers); ``RunnerContext.batch_invariant``; and ``Plugin.request_extra``.
"""

O = TypeVar("O", bound=Options)


class Kind(StrEnum):
    """The kinds of plugin; the value is the entry-point group without ``enginebay.``."""

    EXECUTOR = "executors"
    RUNNER = "runners"
    SCHEDULER = "schedulers"
    STATUS_SINK = "status_sinks"
    EXTENSION = "extensions"
    WORKER_EXTENSION = "worker_extensions"

    @property
    def group(self) -> str:
        """The entry-point group."""
        return f"enginebay.{self.value}"

    @property
    def noun(self) -> str:
        """The kind in a sentence: "executor", "status sink"."""
        return self.value.removesuffix("s").replace("_", " ")

    @property
    def register_hook(self) -> str:
        """The name of the hook that registers plugins of this kind."""
        return f"enginebay_register_{self.value}"


@dataclass(frozen=True, kw_only=True)
class ExecutorCapabilities:
    """What an executor can do.

    ``max_in_flight``: steps that it queues per rank before the first is answered; a step is one call, or two where
    tokens are drawn under a grammar. ``maps_devices``: it gives each worker its own devices (Ray and torchrun do).
    ``every_rank_schedules``: one engine per rank. ``restartable``: ``start`` works again after ``stop``, with the next
    generation. ``attaches``: the workers' processes exist already.
    """

    max_in_flight: int = 1
    multi_node: bool = False
    maps_devices: bool = False
    every_rank_schedules: bool = False
    restartable: bool = False
    attaches: bool = False
    max_world_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class SchedulerCapabilities:
    """``deterministic_order``: same schedule from the same inputs, no clock. ``overlap_safe``: for whole schedulers,
    whether the next step may be scheduled before the last result is known (a ``Policy`` always is)."""

    deterministic_order: bool = False
    overlap_safe: bool = False


@dataclass(frozen=True, kw_only=True)
class RunnerCapabilities:
    """What a runner can do. ``features`` are what it serves beyond greedy and temperature: "top_k", "top_p", "min_p",
    "seed", "n" (draws keyed by ``NewRequest.choice``), "penalties" (repetition, presence and frequency), "logit_bias",
    "bad_words", "min_tokens", "logprobs", "prompt_logprobs", "grammar" (it keeps to masks: see
    ``SchedulerOutput.constrained``), and "batch_invariant"; a request that needs another is refused by the name of its
    field. ``devices`` are the device kinds ("cpu", "cuda"). ``dtypes`` are those that it computes in, empty for any;
    ``cache_as_dtype`` says that its KV cache cannot have another. ``attention`` is the name of the attention kernel
    that it always uses, "" when that is settled at load (``ModelRunner.in_force`` then says). ``sleep``,
    ``update_weights`` and ``send_weights``: it has the methods of ``ModelRunner`` for these. ``max_draft_tokens``: so
    many proposals of one request it verifies in one step (``RunningRequest.draft_token_ids``); 0: it knows of none, and
    speculation is refused.
    """

    async_output: bool = False
    captures_graph: bool = False
    sleep: bool = False
    update_weights: bool = False
    send_weights: bool = False
    tensor_parallel: bool = False
    pipeline_parallel: bool = False
    devices: tuple[str, ...] = ("cpu",)
    features: frozenset[str] = frozenset()
    attention: str = ""
    max_draft_tokens: int = 0
    constraints: BatchConstraints = field(default_factory=BatchConstraints)
    dtypes: tuple[str, ...] = ()
    cache_as_dtype: bool = False


@dataclass(frozen=True, kw_only=True)
class Plugin(Generic[O]):
    """What every descriptor has. ``requires_modules`` maps a module to the pip requirement that brings it.

    ``request_extra``: what the plugin takes in a request's ``extra`` under its name, as JSON; a request that brings
    something else is refused before it runs. None: whatever bytes a client sends reach the plugin as they are.
    """

    name: str
    requires_api: tuple[int, int] = (1, 0)
    options: type[O] = NoOptions  # type: ignore[assignment]  # a default for a type parameter: PEP 696 is 3.13
    requires_modules: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    request_extra: type[Options] | None = None


@dataclass(frozen=True, kw_only=True)
class OwnRank:
    """Which rank of how many this process is, and its number on its host, as the launcher has said.

    ``ranks_per_host``: how many the launcher has started on each host; None: it does not say, and all are on one.
    """

    rank: int
    world_size: int
    local_rank: int
    ranks_per_host: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExecutorPlugin(Plugin[O]):
    """Describes an executor.

    ``own_rank``: for one with ``every_rank_schedules``, which must have it; light. Raises ``CapabilityError`` when this
    process was not started by a launcher.
    """

    factory: Callable[[ExecutorContext[O]], Executor[O]]
    capabilities: ExecutorCapabilities = field(default_factory=ExecutorCapabilities)
    own_rank: Callable[[], OwnRank] | None = None


@dataclass(frozen=True, kw_only=True)
class RunnerPlugin(Plugin[O]):
    """Describes a model runner.

    ``supports`` is light (it sees ``config.json`` only) and answers None for yes, or the reason for no.
    ``splits`` is as light: the model, tensor ranks, pipeline stages; None when it can be shared out so, or the reason.
    ``preference`` decides when the config says ``use = "auto"``: the highest that can do what is asked is taken; one
    that drives the machine's accelerator goes before all that do not.
    ``device`` makes the ``Device`` that the worker drives, from (kind, local device index); None means the default,
    which is torch's. A runner without torch names one of its own.
    ``hesitates``, light: why another runner that fits serves better on this machine, or None; only "auto" asks.
    ``foresees``, light: what will be in force by these options, name → (value, why), for ``enginebay check``.
    ``capture``, of a runner with ``captures_graph``: what ``enginebay graph`` shows: the step of ``context.model`` as a
    graph, before any pass, with ``context.constants`` filled in; heavy, and without reading weights.
    """

    factory: Callable[[RunnerContext[O]], ModelRunner[O]]
    capabilities: RunnerCapabilities = field(default_factory=RunnerCapabilities)
    supports: Callable[[ModelInfo], str | None] = lambda model: None
    preference: int = 0
    device: Callable[[str], Device] | None = None
    splits: Callable[[ModelInfo, int, int], str | None] = lambda model, tensor, pipeline: None
    capture: Callable[[GraphContext], CapturedGraph] | None = None
    hesitates: Callable[[], str | None] = lambda: None
    foresees: Callable[[O], Mapping[str, tuple[str, str]]] = lambda options: {}


@dataclass(frozen=True, kw_only=True)
class SchedulerPlugin(Plugin[O]):
    """Describes a scheduler: the factory returns a ``Policy`` (the usual tier) or a whole ``Scheduler``."""

    factory: Callable[[SchedulerContext[O]], Policy[O] | Scheduler[O]]
    capabilities: SchedulerCapabilities = field(default_factory=SchedulerCapabilities)


@dataclass(frozen=True, kw_only=True)
class StatusSinkPlugin(Plugin[O]):
    """Describes a status sink. Loaded by ``[status] sinks``, with its options under ``[status.NAME]``.

    The factory is called by the thread that writes to the sink, before its first call, and again later when it raised:
    it may reach for what is down, and nobody waits for it. ``lasting``: another sink with the same options sees what
    was written, also after this one's end.
    """

    factory: Callable[[StatusSinkContext[O]], StatusSink[O]]
    lasting: bool = True


@dataclass(frozen=True, kw_only=True)
class ExtensionPlugin(Plugin[O]):
    """Describes an extension: an object whose hook implementations are registered in the engine's process.

    ``foresees``, light: what will be in force by these options, name → (value, why), for ``enginebay check``.
    """

    factory: Callable[[O], Any]
    wrap_order: int = 0
    foresees: Callable[[O], Mapping[str, tuple[str, str]]] = lambda options: {}


@dataclass(frozen=True, kw_only=True)
class WorkerExtensionPlugin(Plugin[O]):
    """Describes a worker extension: an object made in every worker, whose ``methods``, and no others, can be called.

    A method takes ``payload: bytes`` and returns bytes, or None for none. Loaded by ``[worker] extensions``, with its
    options under ``[worker.options.NAME]``.
    """

    factory: Callable[[WorkerExtensionContext[O]], Any]
    methods: tuple[str, ...] = ()

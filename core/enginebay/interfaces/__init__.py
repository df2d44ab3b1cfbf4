"""What plugin authors implement. Everything importable from here is public and follows the rules of evolution.

Read in this order: ``plugin`` (how a part is described), then the file of the part that you write: ``executor``,
``runner`` (with ``device``), ``scheduler``, ``status`` (a status sink), or ``graph`` (a pass over a captured model).
"""

from enginebay.interfaces._device import Device
from enginebay.interfaces._executor import (
    Executor,
    ExecutorContext,
    ExecutorHealth,
    PendingCall,
    RankHealth,
    RecordResource,
    StartResult,
    StartSpec,
    WorkerChannel,
    WorkerExit,
)
from enginebay.interfaces._graph import CapturedGraph, GraphContext, GraphPass, Origin, Packed, Parameter, Ranges, Table
from enginebay.interfaces._options import NoOptions, Options
from enginebay.interfaces._plugin import (
    API_VERSION,
    ExecutorCapabilities,
    ExecutorPlugin,
    ExtensionPlugin,
    Kind,
    OwnRank,
    Plugin,
    RunnerCapabilities,
    RunnerPlugin,
    SchedulerCapabilities,
    SchedulerPlugin,
    StatusSinkPlugin,
    WorkerExtensionPlugin,
)
from enginebay.interfaces._reclaim import Finding, Reclaim
from enginebay.interfaces._runner import (
    AsyncModelRunnerOutput,
    BatchConstraints,
    ModelRunner,
    RunnerContext,
    WorkerGroups,
)
from enginebay.interfaces._scheduler import (
    KVCacheView,
    Policy,
    PolicyState,
    Propose,
    RequestView,
    Scheduler,
    SchedulerContext,
    SchedulerLimits,
)
from enginebay.interfaces._status import StatusConflict, StatusSink, StatusSinkContext, Stored
from enginebay.interfaces._worker_extension import WorkerExtensionContext

__all__ = [
    "API_VERSION",
    "AsyncModelRunnerOutput",
    "BatchConstraints",
    "CapturedGraph",
    "Device",
    "Executor",
    "ExecutorCapabilities",
    "ExecutorContext",
    "ExecutorHealth",
    "ExecutorPlugin",
    "ExtensionPlugin",
    "Finding",
    "GraphContext",
    "GraphPass",
    "KVCacheView",
    "Kind",
    "ModelRunner",
    "NoOptions",
    "Options",
    "Origin",
    "OwnRank",
    "Packed",
    "Parameter",
    "PendingCall",
    "Plugin",
    "Policy",
    "PolicyState",
    "Propose",
    "Ranges",
    "RankHealth",
    "Reclaim",
    "RecordResource",
    "RequestView",
    "RunnerCapabilities",
    "RunnerContext",
    "RunnerPlugin",
    "Scheduler",
    "SchedulerCapabilities",
    "SchedulerContext",
    "SchedulerLimits",
    "SchedulerPlugin",
    "StartResult",
    "StartSpec",
    "StatusConflict",
    "StatusSink",
    "StatusSinkContext",
    "StatusSinkPlugin",
    "Stored",
    "Table",
    "WorkerChannel",
    "WorkerExit",
    "WorkerExtensionContext",
    "WorkerExtensionPlugin",
    "WorkerGroups",
]

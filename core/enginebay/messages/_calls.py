"""What the engine asks of workers: a closed union of typed calls, and the envelope and replies that carry them."""

from __future__ import annotations

from msgspec import Struct, field

from enginebay.messages._life import LifeCall, LifeResult
from enginebay.messages._steps import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from enginebay.messages._workers import KVCacheSpec, MemorySnapshot, PluginIdentity, WorkerInfo


class InitWorker(Struct, frozen=True, kw_only=True, tag="init_worker"):
    """Load the plugins that the config names; answers with the set that was loaded."""


class InitDevice(Struct, frozen=True, kw_only=True, tag="init_device"):
    """Choose the device, join the distributed environment, take the memory snapshot, build the runner.

    ``rendezvous`` is where the ranks of a world of several meet: ``file:///folder/name`` on one host,
    ``tcp://address:port/prefix`` across hosts, ``env`` when their owner has joined them already. A new one for each
    generation; "" for a world of one rank.
    """

    rendezvous: str = ""


class LoadModel(Struct, frozen=True, kw_only=True, tag="load_model"):
    """Read this rank's weights. ``peer``: receive them from the worker that was asked to send them there instead.

    ``peer`` is the ``rendezvous`` of ``SendWeights``; the weights' files are then not read.
    """

    peer: str = ""


class DetermineAvailableMemory(Struct, frozen=True, kw_only=True, tag="determine_available_memory"):
    """Run the largest step once, and say how many bytes are left for the KV cache."""


class InitializeKVCache(Struct, frozen=True, kw_only=True, tag="initialize_kv_cache"):
    """Allocate the KV cache with this many blocks per group (the fewest of all ranks)."""

    num_blocks: int


class CompileOrWarmUpModel(Struct, frozen=True, kw_only=True, tag="compile_or_warm_up_model"):
    """Everything that the first step should not have to wait for."""


class ExecuteModel(Struct, frozen=True, kw_only=True, tag="execute_model"):
    """Run one step."""

    scheduler_output: SchedulerOutput


class SampleTokens(Struct, frozen=True, kw_only=True, tag="sample_tokens"):
    """Draw the tokens of the step before, whose ``execute_model`` answered None."""

    grammar_output: GrammarOutput | None = None


class Shutdown(Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Give back the device and end."""


Call = (
    InitWorker
    | InitDevice
    | LoadModel
    | DetermineAvailableMemory
    | InitializeKVCache
    | CompileOrWarmUpModel
    | ExecuteModel
    | SampleTokens
    | LifeCall
    | Shutdown
)


class Ack(Struct, frozen=True, kw_only=True, tag="ack"):
    """Done; nothing more to say."""


class PluginsLoaded(Struct, frozen=True, kw_only=True, tag="plugins_loaded"):
    """The reply to ``init_worker``: every rank must name the same set."""

    plugins: tuple[PluginIdentity, ...] = ()


class DeviceReady(Struct, frozen=True, kw_only=True, tag="device_ready"):
    """The reply to ``init_device``."""

    worker: WorkerInfo
    snapshot: MemorySnapshot
    requested_bytes: int


class ModelLoaded(Struct, frozen=True, kw_only=True, tag="model_loaded"):
    """The reply to ``load_model``: READY. ``in_force`` says what was really chosen (attention kernel, dtype, …)."""

    kv_cache_spec: KVCacheSpec
    weight_bytes: int = 0
    in_force: dict[str, str] = field(default_factory=dict)


class MemoryAvailable(Struct, frozen=True, kw_only=True, tag="memory_available"):
    """The reply to ``determine_available_memory``: bytes that the KV cache may take on this rank."""

    kv_cache_bytes: int
    free_bytes: int = 0


class StepResult(Struct, frozen=True, kw_only=True, tag="step_result"):
    """The reply to ``execute_model`` and ``sample_tokens``. ``output`` None: ``sample_tokens`` comes next.

    ``step`` is the number of the schedule that it answers; -1: a worker that does not say it.
    """

    output: ModelRunnerOutput | None = None
    step: int = -1
    start_ns: int = 0
    end_ns: int = 0


class WorkerFailure(Struct, frozen=True, kw_only=True, tag="worker_failure"):
    """A failure as data: what went wrong, in which phase, on which rank. ``kind`` groups it for exit codes.

    ``kind`` is the name of an error class of ``enginebay.errors``, when the worker raised one of ours, or "".
    """

    phase: str
    error_type: str
    message: str
    traceback: str = ""
    kind: str = ""
    rank: int = 0
    host: str = ""
    pid: int = 0
    signal: int = 0
    last_log_lines: tuple[str, ...] = ()


Result = Ack | PluginsLoaded | DeviceReady | ModelLoaded | MemoryAvailable | StepResult | LifeResult | WorkerFailure


class Envelope(Struct, frozen=True, kw_only=True):
    """One call on its way: bytes for the ranks named (None: all), with what is needed to match and to bound it.

    ``deadline`` is seconds of the monotonic clock, or None for a call that the core bounds by other means.
    """

    generation: int
    call_id: int
    payload: bytes
    ranks: tuple[int, ...] | None = None
    deadline: float | None = None
    traceparent: str = ""


class RankReply(Struct, frozen=True, kw_only=True):
    """One rank's answer: encoded ``Result`` bytes, or the failure that the executor saw in its stead."""

    rank: int
    payload: bytes = b""
    failure: WorkerFailure | None = None


class Replies(Struct, frozen=True, kw_only=True):
    """All answers to one envelope in rank order; a missing rank is a failure that names it."""

    generation: int
    call_id: int
    replies: tuple[RankReply, ...]

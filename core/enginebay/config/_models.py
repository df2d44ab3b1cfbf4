"""The sections of ``engine.toml`` as pydantic models. Plugin options stay raw here; ``plugins`` validates them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from enginebay.config._recovery import RecoveryConfig
from enginebay.config._section import Dtype, Positive, Seconds, Section, Switch
from enginebay.config._status import StatusConfig


class ModelConfig(Section):
    """``[model]``: which model, and how it is read."""

    path: Annotated[
        Path | None,
        Field(
            description="Folder of safetensors, GGUF file, or name of an imported model; unset: the imported SmolLM2."
        ),
    ] = None
    served_model_name: Annotated[
        str | None, Field(description="The name under which clients see the model; unset: its own.")
    ] = None
    tokenizer: Annotated[
        Path | None, Field(description="Folder or file of another tokenizer; unset: the model's own.")
    ] = None
    dtype: Annotated[Dtype, Field(description="Weights and activations; auto: as the model's config says.")] = "auto"
    seed: Annotated[
        int,
        Field(ge=0, strict=True, description="Seeds the framework's generators; token draws have seeds of their own."),
    ] = 0
    max_model_len: Annotated[
        Positive | None, Field(description="Prompt plus output tokens of one request; unset: the model's.")
    ] = None


class ParallelConfig(Section):
    """``[parallel]``: ranks of one model copy, and copies."""

    tensor_parallel_size: Annotated[Positive, Field(description="Ranks that share each layer.")] = 1
    pipeline_parallel_size: Annotated[Positive, Field(description="Ranks that share the layers among them.")] = 1
    data_parallel_size: Annotated[Positive, Field(description="Copies of the model.")] = 1


class DeviceConfig(Section):
    """``[device]``: what the workers compute on."""

    kind: Annotated[
        str, Field(description='"auto", "cpu", "cuda", … ; auto: an accelerator that the runner supports, else cpu.')
    ] = "auto"
    ids: Annotated[
        tuple[int, ...] | None, Field(description="Device indices to use, in rank order; unset: from 0 on.")
    ] = None


class _Used(Section):
    """A section that names a plugin."""

    options: dict[str, Any] = Field(
        default_factory=dict, description="The plugin's own options: enginebay describe KIND NAME."
    )


class ExecutorConfig(_Used):
    """``[executor]``: where the workers run."""

    use: Annotated[str, Field(description="Name of an installed executor.")] = "uni"


class RunnerConfig(_Used):
    """``[runner]``: how a worker turns a schedule into tokens."""

    use: Annotated[
        str, Field(description="Name of an installed runner; auto: the most preferred one that supports the model.")
    ] = "auto"


class SchedulerConfig(_Used):
    """``[scheduler]``: which scheduler, and what the mechanics keep for every policy."""

    use: Annotated[str, Field(description="Name of an installed scheduler.")] = "fcfs"
    max_num_seqs: Annotated[
        Positive | None, Field(description="Requests that run at once; unset: 256, or what the runner allows.")
    ] = None
    max_num_batched_tokens: Annotated[
        Positive | None, Field(description="Tokens of one step; unset: 2048, or what the runner allows.")
    ] = None
    chunked_prefill: Annotated[
        bool | None, Field(description="Whether a prompt may be split over steps; unset: yes, if the runner can.")
    ] = None
    long_prefill_token_threshold: Annotated[
        int,
        Field(
            ge=0,
            strict=True,
            description="While others wait, at most this many tokens of one prompt in a step; 0: no cap.",
        ),
    ] = 0
    reserve_whole_prompt: Annotated[
        bool, Field(description="Admit a request only when blocks for its whole prompt are free.")
    ] = False
    watermark: Annotated[float, Field(ge=0, lt=1, description="Share of the KV blocks that admission leaves free.")] = (
        0.0
    )
    no_evict: Annotated[
        bool, Field(description="Admit a request only when blocks for all it may ever need are free: no preemption.")
    ] = False
    overlap: Annotated[
        Switch | Literal["auto"],
        Field(description="Schedule the next step while one runs; auto: yes, where executor and scheduler can."),
    ] = "auto"


class CacheConfig(Section):
    """``[cache]``: the KV cache. At most one of memory_utilization, memory_bytes and num_blocks."""

    memory_utilization: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Field(description="Share of the device's memory that the engine may take, weights included."),
    ] = None
    memory_bytes: Annotated[Positive | None, Field(description="Bytes of the KV cache on each rank.")] = None
    num_blocks: Annotated[Positive | None, Field(description="Blocks of the KV cache.")] = None
    block_size: Annotated[
        Positive | Literal["auto"], Field(description="Tokens of a block; auto: the runner's choice, else 16.")
    ] = "auto"
    dtype: Annotated[Dtype, Field(description="Precision of keys and values; auto: the model's.")] = "auto"
    prefix_caching: Annotated[
        bool | None, Field(description="Reuse the blocks of equal beginnings; unset: yes, if the runner can.")
    ] = None
    hash: Annotated[Literal["sha256"], Field(description="How blocks are named by content.")] = "sha256"
    offload_bytes: Annotated[
        int, Field(ge=0, strict=True, description="Host memory for blocks that the device's cache gave up; 0: none.")
    ] = 0

    @field_validator("offload_bytes")
    @classmethod
    def _no_offloading_yet(cls, value: int) -> int:
        if value:
            raise ValueError("blocks stay on the device: there is no offloading in this version; leave it out, or 0")
        return value

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        given = [k for k in ("memory_utilization", "memory_bytes", "num_blocks") if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} say the same thing twice: keep one of them")
        return self


class SpeculationConfig(Section):
    """``[speculation]``: tokens that are proposed beforehand, and verified several in one step."""

    use: Annotated[
        Literal["off", "ngram"], Field(description="ngram: what followed the last tokens where they stood before.")
    ] = "off"
    max_tokens: Annotated[
        int, Field(ge=1, le=64, strict=True, description="Proposals for one request in one step, at most.")
    ] = 4
    ngram_min: Annotated[
        int, Field(ge=1, le=16, strict=True, description="The fewest last tokens that must have stood before.")
    ] = 2
    ngram_max: Annotated[
        int, Field(ge=1, le=16, strict=True, description="The most last tokens that are looked for, first of all.")
    ] = 4

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min = {self.ngram_min} is more than ngram_max = {self.ngram_max}")
        return self

    @property
    def num_tokens(self) -> int:
        """Proposals for one request in one step, at most; 0: speculation is off."""
        return 0 if self.use == "off" else self.max_tokens


class WorkerConfig(Section):
    """``[worker]``: what every worker loads beside the runner."""

    extensions: Annotated[tuple[str, ...], Field(description="Names of installed worker extensions.")] = ()
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="A table per worker extension: enginebay describe 'worker extension' NAME."
    )
    threads: Annotated[
        Positive | None, Field(description="CPU threads of one worker's computing; unset: the cores shared out.")
    ] = None

    @model_validator(mode="after")
    def _options_of_extensions(self) -> Self:
        twice = [name for name in self.extensions if self.extensions.count(name) > 1]
        if twice:
            raise ValueError(f"extensions names '{twice[0]}' twice: once is enough")
        stray = [name for name in self.options if name not in self.extensions]
        if stray:
            raise ValueError(f"options has a table for '{stray[0]}', which extensions does not name: name it there")
        return self


class DeadlinesConfig(Section):
    """``[deadlines]``: how long the engine waits for what it does not do itself, in seconds."""

    request: Annotated[
        Seconds | None, Field(description="From arrival to the last token; unset: none but the request's own.")
    ] = None
    start: Annotated[Seconds, Field(description="From the spawn to every worker's HELLO.")] = 120.0
    load_model: Annotated[
        Seconds, Field(description="Reading the weights, and each other phase of a worker's start.")
    ] = 600.0
    collective: Annotated[Seconds, Field(description="One collective: how long a rank waits in it for its peers.")] = (
        120.0
    )
    step: Annotated[Seconds, Field(description="One step: what the workers may take for it.")] = 300.0
    call: Annotated[Seconds, Field(description="Any other call on the workers.")] = 300.0
    heartbeat: Annotated[
        Seconds, Field(description="Between looks at workers; one that is stopped for three of them is hung.")
    ] = 5.0
    stop: Annotated[Seconds, Field(description="Stopping everything.")] = 10.0
    drain: Annotated[
        Seconds, Field(description="Letting running requests finish before a stop; in force with a server.")
    ] = 30.0
    recovery: Annotated[
        Seconds, Field(description="How long requests wait while no group is ready; then each fails.")
    ] = 120.0


class EngineSection(Section):
    """``[engine]``: the step loop."""

    batch_invariant: Annotated[
        bool, Field(description="A request's bits do not depend on the batch, on chunks or on a restart; slower.")
    ] = False
    compare_every: Annotated[
        Positive,
        Field(description="Steps after which ranks that each schedule for themselves compare what they scheduled."),
    ] = 100


class ServerConfig(Section):
    """``[server]``: how ``enginebay up`` listens for front ends, and what patience it has with them, in seconds."""

    address: Annotated[
        str | None,
        Field(description="ipc://PATH or tcp://HOST:PORT; unset: a socket in this user's runtime folder."),
    ] = None
    keys: Annotated[Path | None, Field(description="Key file for tcp://; made when it is not there.")] = None
    stall: Annotated[
        Seconds, Field(description="A front end that takes nothing of what was sent for so long loses its requests.")
    ] = 60.0
    resume: Annotated[
        Seconds, Field(description="How long a front end may be gone when a network connection broke.")
    ] = 10.0


class TelemetryConfig(Section):
    """``[telemetry]``: where traces go. Nothing set: no exporter, no thread, no cost."""

    endpoint: Annotated[
        str | None, Field(description="OTLP endpoint, such as http://127.0.0.1:4318; needs the extra otel.")
    ] = None
    file: Annotated[Path | None, Field(description="File of OTLP JSON lines; read it with enginebay trace FILE.")] = (
        None
    )
    step_every: Annotated[Positive, Field(description="Record one step in so many, and every failed or slow one.")] = (
        100
    )


class EngineConfig(Section):
    """The whole config, validated and frozen; ``enginebay config schema`` prints it with the plugins' options."""

    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    device: DeviceConfig = DeviceConfig()
    executor: ExecutorConfig = ExecutorConfig()
    runner: RunnerConfig = RunnerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    cache: CacheConfig = CacheConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    worker: WorkerConfig = WorkerConfig()
    extensions: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="A section per extension; presence loads it."
    )
    status: StatusConfig = StatusConfig()
    deadlines: DeadlinesConfig = DeadlinesConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    engine: EngineSection = EngineSection()
    server: ServerConfig = ServerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

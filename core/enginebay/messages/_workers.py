"""Who the workers are: their place in the world, their devices, memory, model and KV cache."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class RankPlace(Struct, frozen=True, kw_only=True):
    """One worker's place in its group."""

    rank: int = 0
    local_rank: int = 0
    tensor_rank: int = 0
    pipeline_rank: int = 0
    node: int = 0


class WorldPlan(Struct, frozen=True, kw_only=True):
    """The ranks of one group and which of them answers with tokens; all rank arithmetic reads it.

    ``own_ranks``: those that this engine starts and speaks to; None: all of them. Where every rank has an engine of its
    own, that is the one rank in this process, and ``output_rank`` is it too.
    """

    ranks: tuple[RankPlace, ...] = (RankPlace(),)
    output_rank: int = 0
    devices_per_rank: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_index: int = 0
    data_parallel_rank_local: int | None = None
    own_ranks: tuple[int, ...] | None = None

    @property
    def own_places(self) -> tuple[RankPlace, ...]:
        """The places of ``own_ranks``, in their order: payloads, answers and reports of this engine are in it."""
        return self.ranks if self.own_ranks is None else tuple(self.ranks[rank] for rank in self.own_ranks)


class PluginIdentity(Struct, frozen=True, kw_only=True, order=True):
    """A plugin as every process must agree on it; ``options`` is canonical JSON (sorted keys)."""

    kind: str
    name: str
    package: str
    version: str
    options: str = "{}"


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """A device's memory in bytes: whole, free, and what this process's allocator holds, reserves and held at most."""

    total: int
    free: int
    allocated: int = 0
    reserved: int = 0
    peak: int = 0
    process: int = 0


class MemorySnapshot(Struct, frozen=True, kw_only=True):
    """Device memory at one moment, in bytes; two of them can be subtracted, field by field.

    ``non_torch`` is what is in use beyond the allocator's reserve: communicators, other libraries, other processes.
    """

    device: str
    timestamp: float
    total: int
    free: int
    allocated: int
    reserved: int
    peak: int
    process: int

    @property
    def non_torch(self) -> int:
        """Bytes in use outside this process's allocator."""
        return self.total - self.free - self.reserved

    def __sub__(self, other: MemorySnapshot) -> MemorySnapshot:
        if self.device != other.device:
            raise ValueError(f"snapshots of {self.device} and {other.device} cannot be subtracted")
        return MemorySnapshot(
            device=self.device,
            timestamp=self.timestamp - other.timestamp,
            total=self.total - other.total,
            free=self.free - other.free,
            allocated=self.allocated - other.allocated,
            reserved=self.reserved - other.reserved,
            peak=self.peak - other.peak,
            process=self.process - other.process,
        )


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """One live worker: its place, its process, and the incarnation that the spawner named before it existed.

    ``address`` is the one at which the other ranks' hosts reach it; "" where all are on one host. ``space`` is what its
    ``enginebay.runtime.pid_space()`` says: where another process's is the same, ``pid`` means the same process; "": it
    did not say so, and an executor whose workers may be on other hosts has nobody judge by the pid.
    """

    rank: int
    local_rank: int
    incarnation: str
    host: str
    pid: int
    device: str = ""
    address: str = ""
    space: str = ""


class KVCacheGroup(Struct, frozen=True, kw_only=True):
    """Layers whose blocks are handed out together. ``kind`` is "full" or "sliding_window", with its ``window``.

    ``window``: tokens that a token sees, its own included; blocks that fell out of it come back, and the null block
    (id 0, which is then reserved) stands in their places of the table: neither may be read. ``bytes_per_block`` counts
    the keys and values of ``block_size`` tokens in all layers of the group on one rank; a rank without any has 0.
    """

    layers: tuple[int, ...]
    block_size: int
    bytes_per_block: int
    kind: str = "full"
    window: int | None = None


class KVCacheSpec(Struct, frozen=True, kw_only=True):
    """What the runner needs of the KV cache: the same groups, in the same order, on every rank.

    ``num_blocks`` is set when the runner fixes it itself. The groups' ids are of one pool, and each is of one group at
    a time. ``bytes_per_block`` is what an id costs on this rank where groups share memory; None: each id has its place
    in every group, and costs their sum.
    """

    groups: tuple[KVCacheGroup, ...]
    num_blocks: int | None = None
    reserved_blocks: int = 0
    bytes_per_block: int | None = None

    @property
    def cost_per_block(self) -> int:
        """Bytes that one id costs on this rank, in all groups together."""
        if self.bytes_per_block is not None:
            return self.bytes_per_block
        return sum(group.bytes_per_block for group in self.groups)


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is known of a model from its folder's JSON files alone: no torch, no weights read.

    ``ignored_generation`` holds ``"name = value"`` of settings in generation_config.json that are not applied.
    """

    path: str
    name: str
    architecture: str
    model_type: str
    vocab_size: int
    max_model_len: int
    dtype: str
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    ignored_generation: tuple[str, ...] = ()


class StartPayload(Struct, frozen=True, kw_only=True):
    """All that a worker is given before it is spawned: identity, place, and the config as JSON text.

    ``block_size``, ``max_model_len``, ``dtype`` and ``cache_dtype`` are the values in force, settled at assembly
    ("auto": the config's, else the model's); ``config`` is the validated config, which the worker reads again with the
    same models.
    """

    incarnation: str
    generation: int
    place: RankPlace
    world: WorldPlan
    config: str
    model: ModelInfo
    runner: str
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    executor_maps_devices: bool = False
    traceparent: str = ""
    dtype: str = "auto"
    cache_dtype: str = "auto"

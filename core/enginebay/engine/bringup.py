"""The start of the workers, phase by phase: every rank at once, each phase with its deadline and its error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from enginebay.engine.plan import Plan
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import EnginebayError, StartFailed
from enginebay.interfaces import Executor, StartSpec
from enginebay.messages import (
    Ack,
    Call,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    DeviceReady,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LoadModel,
    MemoryAvailable,
    ModelLoaded,
    PluginIdentity,
    PluginsLoaded,
    StartPayload,
)
from enginebay.plugins import Hooks
from enginebay.runtime import Runtime
from enginebay.transport import encode_start_payload

__all__ = ["BringUp", "LoadedWorkers"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LoadedWorkers:
    """What the ranks said on the way, in rank order."""

    devices: tuple[DeviceReady, ...]
    models: tuple[ModelLoaded, ...]
    memory: tuple[MemoryAvailable, ...]

    def tell(self, hooks: Hooks) -> None:
        """Tell the observers who the workers are, and how much memory their devices have."""
        for ready in self.devices:
            hooks.worker_started(ready.worker)
            hooks.memory_snapshot(ready.worker.rank, ready.snapshot)


class BringUp:
    """Takes one group's workers from nothing to warm. ``Executor.stop`` is the undo of all of it."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor[Any],
        runtime: Runtime,
        *,
        watch: WorkerWatch,
        generation: int,
        traceparent: str,
    ) -> None:
        self._plan = plan
        self._executor = executor
        self._runtime = runtime
        self._watch = watch
        self._generation = generation
        self._traceparent = traceparent

    def launch(self) -> None:
        """Spawn the workers and wait for every rank's HELLO."""
        plan = self._plan
        ids = self._runtime.entropy.stream("incarnations")
        incarnations = tuple(f"{ids.getrandbits(128):032x}" for _ in plan.world.ranks)
        payloads = tuple(
            encode_start_payload(
                StartPayload(
                    incarnation=incarnation,
                    generation=self._generation,
                    place=place,
                    world=plan.world,
                    config=plan.config.model_dump_json(),
                    model=plan.model,
                    runner=plan.runner.plugin.name,
                    block_size=plan.block_size,
                    max_model_len=plan.max_model_len,
                    max_num_seqs=plan.limits.max_num_seqs,
                    max_num_batched_tokens=plan.limits.max_num_batched_tokens,
                    executor_maps_devices=plan.executor.plugin.capabilities.maps_devices,
                    traceparent=self._traceparent,
                    dtype=plan.dtype,
                    cache_dtype=plan.cache_dtype,
                )
            )
            for incarnation, place in zip(incarnations, plan.world.ranks, strict=True)
        )
        spec = StartSpec(
            generation=self._generation,
            world=plan.world,
            payloads=payloads,
            incarnations=incarnations,
            deadline=self._runtime.clock.now() + plan.config.deadlines.start,
            traceparent=self._traceparent,
        )
        self._watch.expect(incarnations)
        try:
            self._executor.start(spec)
        except EnginebayError:
            raise
        except Exception as error:
            raise StartFailed(
                f"executor '{plan.executor.plugin.name}' ({plan.executor.origin}) did not start: "
                f"{type(error).__name__}: {error}"
            ) from error

    def load(self) -> LoadedWorkers:
        """Plugins, devices, weights, and what memory is left."""
        self._compare_plugins(self._call(InitWorker(), PluginsLoaded))
        devices = self._call(InitDevice(), DeviceReady)
        models = self._call(LoadModel(), ModelLoaded)
        memory = self._call(DetermineAvailableMemory(), MemoryAvailable)
        return LoadedWorkers(devices=tuple(devices), models=tuple(models), memory=tuple(memory))

    def allocate(self, num_blocks: int) -> None:
        """The KV cache of that many blocks on every rank."""
        self._call(InitializeKVCache(num_blocks=num_blocks), Ack)

    def warm_up(self) -> None:
        """What the first step should not have to wait for."""
        self._call(CompileOrWarmUpModel(), Ack)

    def _call(self, call: Call, expected: type[T]) -> list[T]:
        name = str(call.__struct_config__.tag)
        timeout = self._plan.config.deadlines.load_model
        try:
            results = self._executor.collective_rpc(call, timeout=timeout, traceparent=self._traceparent)
        except TimeoutError as error:
            health = self._executor.health()
            who = ", ".join(f"rank {rank}" for rank in health.lost_ranks) or "the workers"
            raise StartFailed(
                f"{who} did not finish {name} within {timeout:g} s ([deadlines] load_model)"
                + (f": {health.detail}" if health.detail else "")
            ) from error
        typed = [result for result in results if isinstance(result, expected)]
        if len(typed) != len(self._plan.world.ranks):
            kinds = ", ".join(type(result).__name__ for result in results)
            raise StartFailed(f"the workers answered {name} with {kinds or 'nothing'}, not {expected.__name__} each")
        return typed

    def _compare_plugins(self, answers: Sequence[PluginsLoaded]) -> None:
        """Every rank must have loaded what we have loaded: same package, version and options."""
        ours = sorted([self._plan.runner.identity])
        for place, answer in zip(self._plan.world.ranks, answers, strict=True):
            theirs = sorted(answer.plugins)
            if theirs != ours:
                raise StartFailed(
                    f"rank {place.rank} loaded {_named(theirs)}, but the engine has {_named(ours)}: "
                    "every process must have the same packages, versions and options"
                )


def _named(plugins: Sequence[PluginIdentity]) -> str:
    return (
        ", ".join(f"{p.kind} '{p.name}' ({p.package} {p.version}, options {p.options})" for p in plugins) or "no plugin"
    )

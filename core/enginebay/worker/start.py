"""The phases of a worker's start, each as one method, in the one order that all executors share."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from enginebay import tracing
from enginebay.config import EngineConfig
from enginebay.interfaces import (
    Device,
    ModelRunner,
    RunnerContext,
    RunnerPlugin,
    WorkerExtensionContext,
    WorkerExtensionPlugin,
    WorkerGroups,
)
from enginebay.messages import (
    Ack,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    DeviceReady,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    KVCacheSpec,
    LoadModel,
    MemoryAvailable,
    MemorySnapshot,
    ModelLoaded,
    PluginsLoaded,
    Result,
    StartPayload,
    WeightsSent,
    WorkerInfo,
)
from enginebay.plugins import Loaded, PluginHost
from enginebay.worker import memory
from enginebay.worker.choice import check_dtypes, choose_device, dtypes_in_force
from enginebay.worker.distributed import Membership, clean_environment, join_world, worker_threads
from enginebay.worker.extensions import WorkerExtensions
from enginebay.worker.host import available_cores
from enginebay.worker.mapping import device_index
from enginebay.worker.spans import StartTrace

_LOADING: Final = threading.Lock()
"""Several workers of one process (replicas in threads) load one after the other: a library's own patching, and what a
runner measures, is the process's."""

StartCall = InitWorker | InitDevice | LoadModel | DetermineAvailableMemory | InitializeKVCache | CompileOrWarmUpModel


class WorkerStart:
    """What the start makes: the config, the runner's plugin, the device, the runner. Phases raise what goes wrong.

    The order of the calls is kept by ``Worker``; each phase relies on those before it.
    """

    def __init__(self, payload: StartPayload, host: PluginHost, make_device: Callable[[str], Device] | None) -> None:
        self.trace = StartTrace(payload)
        self._payload = payload
        self._host = host
        self._make_device = make_device
        self._config = EngineConfig()
        self._plugin: Loaded[RunnerPlugin[Any]] | None = None
        self._device: Device | None = None
        self._membership = Membership(WorkerGroups())
        self._in_workers: tuple[Loaded[WorkerExtensionPlugin[Any]], ...] = ()
        self.extensions = WorkerExtensions()
        self.announce: Callable[[int], None] = lambda seconds: None
        self._runner: ModelRunner[Any] | None = None
        self._baseline: MemorySnapshot | None = None
        self._requested = 0
        self._spec: KVCacheSpec | None = None

    @property
    def runner(self) -> ModelRunner[Any]:
        """The runner; there is one after ``init_device``."""
        assert self._runner is not None
        return self._runner

    @property
    def device(self) -> Device:
        """The device; there is one after ``init_device``."""
        assert self._device is not None
        return self._device

    def do(self, call: StartCall, traceparent: str) -> Result:
        """One phase, in its span."""
        match call:
            case InitWorker():
                with self.trace.first(traceparent):
                    return self._init_worker()
            case InitDevice():
                with self.trace.phase(tracing.WORKER_INIT_DEVICE, traceparent):
                    return self._init_device(call.rendezvous)
            case LoadModel():
                with self.trace.phase(tracing.WORKER_LOAD_MODEL, traceparent), self.together(), _LOADING:
                    return self._load_model(call.peer)
            case DetermineAvailableMemory():
                with self.trace.phase(tracing.WORKER_PROFILE, traceparent), self.together():
                    return self._determine_available_memory()
            case InitializeKVCache():
                with self.trace.phase(tracing.WORKER_ALLOCATE_KV_CACHE, traceparent) as span:
                    span.set_attribute(tracing.KV_BLOCKS, call.num_blocks)
                    self.trace.note(tracing.KV_BLOCKS, call.num_blocks)
                    self.runner.initialize_kv_cache(call.num_blocks)
                    return Ack()
            case CompileOrWarmUpModel():
                with self.trace.phase(tracing.WORKER_WARM_UP, traceparent), self.together():
                    self.runner.warm_up()
                    self.device.synchronize()
                self.trace.end()
                return Ack()

    def close(self) -> None:
        """Close the runner, if there is one, and give its memory back."""
        self.trace.end()
        runner, self._runner = self._runner, None
        self.extensions.close()
        try:
            if runner is not None:
                runner.close()
        finally:
            del runner  # else the collection below could not free what it holds
            self.leave_world()
            if self._device is not None:
                gc.collect()
                self._device.empty_cache()

    def leave_world(self) -> None:
        """Leave the process groups that were joined, if any."""
        self._membership.leave()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what the ranks do together: one that fails leaves, so that those who wait for it fail at once."""
        try:
            yield
        except BaseException:
            self.leave_world()
            raise

    def _init_worker(self) -> PluginsLoaded:
        self._config = EngineConfig.model_validate_json(self._payload.config)
        self._plugin = self._host.load_runner(self._payload.runner, self._config.runner.options)
        self._in_workers = self._host.load_worker_extensions(
            self._config.worker.extensions, self._config.worker.options
        )
        return PluginsLoaded(plugins=(self._plugin.identity, *(one.identity for one in self._in_workers)))

    def _init_device(self, rendezvous: str) -> DeviceReady:
        assert self._plugin is not None
        payload, place, world = self._payload, self._payload.place, self._payload.world
        device = choose_device(self._plugin.plugin, self._config.device.kind, self._make_device)
        clean_environment(device.kind, os.environ)
        index = device_index(
            place,
            world,
            maps_devices=payload.executor_maps_devices,
            kind=device.kind,
            visible=device.count(),
            ids=self._config.device.ids,
            visible_env=device.visible_env(),
        )
        device.set_current(index)
        self._device = device
        dtype, cache_dtype = dtypes_in_force(payload, self._config)
        check_dtypes(device, dtype, cache_dtype)
        threads = worker_threads(
            configured=self._config.worker.threads,
            cores=available_cores(),
            ranks_on_node=sum(other.node == place.node for other in world.ranks) * world.data_parallel_size,
            omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        )
        if threads is not None:
            device.set_threads(threads)
        with tracing.span(tracing.WORKER_INIT_DISTRIBUTED, {tracing.WORLD_SIZE: len(world.ranks)}):
            self._membership.leave()
            timeout = self._config.deadlines.collective
            self._membership = join_world(place, world, device, rendezvous, timeout)
        device.seed(self._config.model.seed)
        device.touch_math_library()
        gc.collect()
        device.empty_cache()
        with tracing.span(tracing.WORKER_MEMORY_SNAPSHOT, {tracing.DEVICE: device.name()}) as span:
            self._baseline = memory.snapshot(device)
            span.set_attribute(tracing.FREE_BYTES, self._baseline.free)
            self._requested = memory.requested_bytes(self._config.cache, self._baseline, device.kind)
        self.trace.note(tracing.DEVICE, device.name())
        self.trace.note(tracing.FREE_BYTES, self._baseline.free)
        self._runner = self._make_runner(self._plugin, device, dtype, cache_dtype)
        self._make_extensions(device)
        info = WorkerInfo(
            rank=place.rank,
            local_rank=place.local_rank,
            incarnation=payload.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device.name(),
        )
        return DeviceReady(worker=info, snapshot=self._baseline, requested_bytes=self._requested)

    def _make_runner(
        self, loaded: Loaded[RunnerPlugin[Any]], device: Device, dtype: str, cache_dtype: str
    ) -> ModelRunner[Any]:
        payload = self._payload
        return loaded.plugin.factory(
            RunnerContext(
                options=loaded.options,
                model=payload.model,
                device=device,
                place=payload.place,
                world=payload.world,
                dtype=dtype,
                cache_dtype=cache_dtype,
                block_size=payload.block_size,
                max_model_len=payload.max_model_len,
                max_num_seqs=payload.max_num_seqs,
                max_num_batched_tokens=payload.max_num_batched_tokens,
                seed=self._config.model.seed,
                batch_invariant=self._config.engine.batch_invariant,
                max_draft_tokens=self._config.speculation.num_tokens,
                groups=self._membership.groups,
                announce=lambda seconds: self.announce(seconds),
                graph_passes=self._host.graph_passes([loaded, *self._in_workers]),
            )
        )

    def _make_extensions(self, device: Device) -> None:
        payload = self._payload
        self.extensions.make(
            self._in_workers,
            lambda options: WorkerExtensionContext(
                options=options, place=payload.place, world=payload.world, device=device, runner=self.runner
            ),
        )

    def send_weights(self, rendezvous: str) -> WeightsSent:
        """Give this rank's weights to the worker that asks for them at ``rendezvous``."""
        from enginebay.worker import peer

        timeout = self._config.deadlines.load_model
        return peer.send(self.runner.weights(), rendezvous, self._payload.place.rank, timeout)

    def _load_from(self, rendezvous: str) -> None:
        from enginebay.worker import peer

        self.runner.load_empty()
        timeout = self._config.deadlines.load_model
        peer.receive(self.runner.weights(), rendezvous, self._payload.place.rank, timeout)
        self.runner.weights_received()

    def _load_model(self, rendezvous: str) -> ModelLoaded:
        """From the model's folder, or from a peer where there is a ``rendezvous`` with one."""
        before = memory.snapshot(self.device)
        if rendezvous:
            self._load_from(rendezvous)
        else:
            self.runner.load_model()
        self.device.synchronize()
        self._spec = self.runner.kv_cache_spec()
        grown = memory.snapshot(self.device) - before
        return ModelLoaded(
            kv_cache_spec=self._spec,
            weight_bytes=max(0, grown.process if self.device.kind == "cpu" else grown.allocated),
            in_force=dict(self.runner.in_force()),
        )

    def _determine_available_memory(self) -> MemoryAvailable:
        assert self._spec is not None
        assert self._baseline is not None
        device, cache = self.device, self._config.cache
        profiled = device.kind != "cpu" or memory.utilization_in_force(cache, device.kind) is not None
        if profiled:
            # on a CPU with a size of its own nothing would be read from the run: the start is not made to wait for it
            device.reset_peak()
            self.runner.profile_run()
            device.synchronize()
        after = memory.snapshot(device)
        left = memory.cache_bytes(
            cache, self._spec, kind=device.kind, requested=self._requested, before=self._baseline, after=after
        )
        if profiled:
            device.empty_cache()
        return MemoryAvailable(kv_cache_bytes=left, free_bytes=after.free)

"""This process's connection to a Ray cluster, which Ray allows one of: the engines in it share it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final

from enginebay.errors import StartFailed, one_line
from enginebay.runfolder import RunFolder
from enginebay.runtime import Runtime
from enginebay_ray.door import load_ray
from enginebay_ray.private import PrivateFolder

__all__ = ["Cluster", "join", "leave", "own_address"]

_OBJECT_STORE_BYTES: Final = 80_000_000  # the least that Ray takes; what we send is small, and never stored
_CPUS_OF_OUR_OWN: Final = 64  # Ray only counts them; more engines of this process may come
_KILL_AFTER_SECONDS: Final = 5.0
_ENDS_US: Final = "RAY_gcs_rpc_server_reconnect_timeout_s"
_NEVER: Final = "1000000000"
"""Seconds: Ray ends whoever is connected to it when its server has been away for so long, 60 if it is not told. The
engine has requests, and a word to say; it finds out by itself when it needs Ray."""

_LOCK: Final = threading.Lock()
_SHARED: Final[list[Cluster]] = []
"""The one cluster that this process is connected to by us; Ray's own state is of the process, too."""
_ENDING: Final[list[Cluster]] = []
"""Those that are being disconnected: Ray cannot be connected anew before that is done."""


class Cluster:
    """A connection that is kept by a thread of its own until the last engine has left.

    The thread matters: Ray's processes on this machine are told to die with the *thread* that started them.
    """

    def __init__(self, address: str | None, cpus: float, runtime: Runtime) -> None:
        self.address = address
        self.users = 0
        self.connected: Future[None] = Future()
        self._cpus = max(_CPUS_OF_OUR_OWN, cpus)
        self._runtime = runtime
        self._private: PrivateFolder | None = None
        self._asked_to_end = threading.Event()
        self.ended = threading.Event()
        self._thread = runtime.spawner.thread("enginebay-ray-cluster", self._live)

    def end(self) -> None:
        """Disconnect, and end what is ours; ``ended`` says when."""
        self._asked_to_end.set()

    def has_gone(self) -> bool:
        """Whether it was a Ray of our own whose server has died."""
        private = self._private
        return private is not None and self.connected.done() and not private.is_served()

    def kill(self) -> None:
        """End the processes of a Ray of our own without asking Ray."""
        if self._private is not None:
            self._private.end_processes(0.0)

    def _live(self) -> None:
        try:
            if self.address is None:
                self._live_alone()
            else:
                self._connect(address=self.address)
                self._asked_to_end.wait()
                _disconnect()
        except BaseException as error:
            if not self.connected.done():
                self.connected.set_exception(error)
            else:
                logging.getLogger("enginebay.ray").exception("the connection to Ray ended badly")
        finally:
            self.ended.set()

    def _live_alone(self) -> None:
        run = RunFolder.make()  # one of its own: the engines that share this Ray end one after the other
        try:
            private = self._private = PrivateFolder(run.path)
            guardian = private.guard(self._runtime.spawner)
            try:
                self._live_in(private)
            finally:
                private.remove()
                guardian.kill()
                guardian.wait()
                guardian.close()
        finally:
            run.close()

    def _live_in(self, private: PrivateFolder) -> None:
        try:
            with private.environment():
                _read_settings_again()
                # our workers' lines need no Ray dashboard; objects on disk, for /dev/shm may be small; workers that
                # are as nice as the engine, for beside a busy program Ray's usual ones hardly get to run
                self._connect(
                    address="local",
                    num_cpus=self._cpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(private.path),
                    _plasma_directory=str(private.path),
                    _system_config={"worker_niceness": 0},
                )
            self._asked_to_end.wait()
        finally:
            _disconnect()
            private.end_processes(_KILL_AFTER_SECONDS)
            _read_settings_again()

    def _connect(self, **how: Any) -> None:
        ray = load_ray()
        with _quiet(), _outliving():
            ray.init(log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **how)
        self.connected.set_result(None)


def join(address: str | None, cpus: float, runtime: Runtime, deadline: float) -> Cluster | None:
    """Connect this process, or share its connection; None: its owner has connected it, and will disconnect it.

    ``address`` None is a Ray of our own with ``cpus``. Raises ``StartFailed``; what was begun is then undone.
    """
    cluster = _take(address, cpus, runtime, deadline)
    if cluster is None:
        return None
    try:
        runtime.wait(cluster.connected, deadline)
    except TimeoutError:
        leave(cluster, runtime, deadline)
        raise StartFailed(f"{_named(address)} did not answer before the start's deadline") from None
    except BaseException as error:
        leave(cluster, runtime, deadline)
        if isinstance(error, Exception):
            words = one_line(f"{type(error).__name__}: {error}")
            raise StartFailed(f"no connection to {_named(address)}: {words}") from error
        raise
    return cluster


def _take(address: str | None, cpus: float, runtime: Runtime, deadline: float) -> Cluster | None:
    """The shared cluster, or a new one when the last has ended; one more uses it."""
    while True:
        with _LOCK:
            for gone in [cluster for cluster in _SHARED if cluster.has_gone()]:
                _retire(gone)  # of no use to any engine that shares it: whoever comes first ends it
            _ENDING[:] = [cluster for cluster in _ENDING if not cluster.ended.is_set()]
            ending = list(_ENDING)
            if not ending:
                cluster = _shared_or_new(address, cpus, runtime)
                if cluster is not None:
                    cluster.users += 1
                return cluster
        if not ending[0].ended.wait(max(0.0, deadline - runtime.clock.now())):
            raise StartFailed(
                f"this process's connection to {_named(ending[0].address)} is being ended, and that took longer than "
                "the start's deadline"
            )


def _shared_or_new(address: str | None, cpus: float, runtime: Runtime) -> Cluster | None:
    cluster = _SHARED[0] if _SHARED else None
    if cluster is None and load_ray().is_initialized():
        return None
    if cluster is None:
        cluster = Cluster(address, cpus, runtime)
        _SHARED.append(cluster)
    elif cluster.address != address:
        raise StartFailed(
            f"this process is connected to {_named(cluster.address)}, and Ray allows one connection to a process: "
            f"run the engine on {_named(address)} in another one"
        )
    return cluster


def _retire(cluster: Cluster) -> None:
    """With the lock held: nobody joins it any more, and whoever wants another one waits for its end."""
    if cluster in _SHARED:
        _SHARED.remove(cluster)
        _ENDING.append(cluster)
    cluster.end()


def leave(cluster: Cluster, runtime: Runtime, deadline: float) -> bool:
    """The last one disconnects; whether that is done by ``deadline`` (a Ray of our own is killed then)."""
    with _LOCK:
        cluster.users -= 1
        if cluster.users > 0:
            return True
        _retire(cluster)
    if cluster.ended.wait(max(0.0, deadline - runtime.clock.now())):
        return True
    cluster.kill()
    return cluster.ended.wait(1.0)


def _named(address: str | None) -> str:
    return "a Ray of our own on this machine" if address is None else f"the Ray cluster at '{address}'"


def _disconnect() -> None:
    ray = load_ray()
    ray.shutdown()


def _read_settings_again() -> None:
    """Ray reads the environment once for each process; older versions have no token to read."""
    with contextlib.suppress(AttributeError, ImportError):
        from ray import _raylet

        settings: Any = _raylet
        settings.Config.initialize("")
        settings.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _outliving() -> Iterator[None]:
    """What is connected meanwhile is not ended by Ray when Ray's server has gone, unless the user has said when."""
    if _ENDS_US in os.environ:
        yield
        return
    os.environ[_ENDS_US] = _NEVER
    try:
        yield
    finally:
        os.environ.pop(_ENDS_US, None)


@contextlib.contextmanager
def _quiet() -> Any:
    """Ray's word that it has not taken over SIGTERM, which is the engine's, is no warning to us."""
    logger = logging.getLogger("ray._private.worker")

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("SIGTERM handler is not set")

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def own_address() -> str:
    """The address of this node, at which the cluster's others reach it."""
    ray = load_ray()
    return str(ray.util.get_node_ip_address())

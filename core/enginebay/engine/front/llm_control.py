"""What ``LLM`` can be asked beside requests: rest, other weights, calls on the workers, profiles, a pause."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay.engine.collector import LOOK_SECONDS
from enginebay.engine.control.tensors import AbortTensors, Command, FinishTensors, StartTensors, new_update
from enginebay.engine.control.words import (
    call_command,
    checked,
    health_of,
    paths_of,
    profile_command,
    tensor_commands,
    update_command,
)
from enginebay.engine.front.front import Front
from enginebay.messages import (
    ControlDone,
    Drain,
    EngineHealth,
    ReadStatus,
    ResetPrefixCache,
    RestartWorkers,
    Resume,
    Scale,
    Sleep,
    StopProfile,
    Swap,
    WakeUp,
)

__all__ = ["LLMControl"]


class LLMControl(ABC):
    """The control half of ``LLM``. Each method waits until it was done, and raises why it was not.

    ``EngineBusy`` and ``EngineAsleep`` mean: not now, and nothing was changed.
    """

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back while there is nothing to do; level 2 drops the weights as well.

        Until ``wake_up`` requests are refused with ``EngineAsleep``. Raises ``EngineBusy`` while requests run, and
        ``CapabilityError`` when the runner does not sleep.
        """
        self._ask(Sleep(level=level))

    def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Take the memory again; ``tags`` of "weights" and "kv_cache", none: both.

        After level 2 the weights are read again from where they came from.
        """
        self._ask(WakeUp(tags=tuple(tags)))

    def update_weights(
        self,
        path: str | Path | None = None,
        *,
        tensors: Iterable[tuple[str, Any]] | None = None,
        per_rank: Mapping[int, Iterable[tuple[str, Any]]] | None = None,
        version: str = "",
    ) -> None:
        """Answer with other weights of the same model from here on: exactly one of the three says where they are.

        ``path``: a folder like the model's own, of which every worker reads its part. ``tensors``: pairs of a name (the
        one in the model's file) and a whole tensor of torch or numpy; each worker takes its part. ``per_rank``: the
        same for single ranks. What was cached is dropped. Raises ``EngineBusy`` while requests run. Whatever goes
        wrong, the old weights go on to serve, unless the error says that there are none.
        """
        command = update_command(path, tensors, per_rank, version)
        if command is not None:
            self._ask(command)
            return
        update = new_update()
        try:
            self._ask(StartTensors(update=update))
            for chunk in tensor_commands(update, tensors, per_rank):
                self._ask(chunk)
            self._ask(FinishTensors(update=update, version=version))
        finally:
            self._ask(AbortTensors(update=update))  # does nothing once they are in force

    def reset_prefix_cache(self) -> None:
        """Forget what the KV cache holds of texts that were: the next request computes all of its prompt.

        Raises ``EngineBusy``, and changes nothing, while requests hold blocks.
        """
        self._ask(ResetPrefixCache())

    def collective_rpc(
        self,
        method: str,
        payload: object = b"",
        *,
        per_rank: Sequence[object] | None = None,
        timeout: float | None = None,
    ) -> list[bytes]:
        """Call ``"extension.method"`` of a loaded worker extension on every rank; the answers in rank order.

        ``payload`` is bytes, or whatever JSON can say, which is sent as JSON; ``per_rank`` has one for each rank.
        Raises ``InvalidRequest`` for a method that no extension declares, ``WorkerFailed`` for one that raised.
        """
        return list(self._ask(call_command(method, payload, per_rank, timeout)).values)

    def start_profile(self, folder: str | Path) -> None:
        """Record what the workers do, until ``stop_profile``, into one file of ``folder`` for each rank."""
        self._ask(profile_command(folder))

    def stop_profile(self) -> list[Path]:
        """Write what was recorded; the files' paths, on the workers' hosts."""
        return paths_of(self._ask(StopProfile()))

    def drain(self, timeout: float | None = None) -> int:
        """Refuse new requests and wait for those that run, at most ``timeout`` seconds (``[deadlines] drain``).

        Returns how many are still unfinished. Requests are refused, with ``EngineBusy``, until ``resume``.
        """
        return int(self._ask(Drain(timeout=timeout)).facts["unfinished"])

    def resume(self) -> None:
        """Take requests again after ``drain``."""
        self._ask(Resume())

    def swap(
        self,
        *,
        scheduler: str = "",
        runner: str = "",
        executor: str = "",
        sets: Sequence[str] = (),
        exclusive: bool = False,
    ) -> dict[str, str]:
        """Put other plugins in the place of those that run; requests wait meanwhile, and lose nothing.

        ``sets`` are ``section.key=value`` of [scheduler], [runner] and [executor], for options above all. Another
        scheduler needs no new workers; a runner or an executor does: they are started beside the old ones where the
        machine's memory has room for both, unless ``exclusive``. Returns what is in force differently now. Raises
        ``CapabilityError`` for what does not fit the model, the config or a request that runs, ``StartFailed`` for
        what does not start, ``EngineBusy`` when it has to wait; then the old plugins go on.
        """
        command = Swap(scheduler=scheduler, runner=runner, executor=executor, sets=tuple(sets), exclusive=exclusive)
        return dict(self._ask(command).facts)

    def scale(
        self,
        *,
        tensor_parallel: int | None = None,
        pipeline_parallel: int | None = None,
        data_parallel: int | None = None,
        exclusive: bool = False,
    ) -> dict[str, str]:
        """Spread each copy of the model over so many workers, as ``swap`` does it.

        A request that would not fit into the new KV cache is a reason to refuse it. ``data_parallel``, alone: how many
        copies there are to be, of which those that are missing are started as ``grow`` does it.
        """
        command = Scale(
            tensor_parallel_size=tensor_parallel,
            pipeline_parallel_size=pipeline_parallel,
            data_parallel_size=data_parallel,
            exclusive=exclusive,
        )
        return dict(self._ask(command).facts)

    def restart_workers(self) -> None:
        """Start the workers anew, one group after the other; the others take the new requests meanwhile.

        The requests of a group wait for its new workers, which have their weights from another group where there is
        one that can lend them. No restart is counted.
        """
        self._ask(RestartWorkers())

    def grow(self) -> int:
        """Start one more copy of the model beside those that run; returns how many groups there are then.

        It has its weights from a running group, reads no file, and takes requests when it is warm; those that run go
        on meanwhile, but for the time of the transfer. Raises what its start raises, and then nothing has changed.
        """
        return self._open_front().grow() + 1

    def status(self) -> dict[str, str]:
        """How the engine stands, in words; answered at once, also while a step runs."""
        return dict(self._ask(ReadStatus()).facts)

    def health(self) -> EngineHealth:
        """Whether the engine does what it is asked, and how its workers stand; answered at once, also by a hung one."""
        return health_of(self._ask(ReadStatus()))

    @abstractmethod
    def _open_front(self) -> Front: ...

    def _ask(self, command: Command) -> ControlDone:
        front = self._open_front()
        answer, runtime = front.client.control(checked(command)), front.runtime
        while True:
            try:
                return runtime.wait(answer, runtime.clock.now() + LOOK_SECONDS)
            except TimeoutError:
                if answer.done():
                    raise
                front.client.check_alive()

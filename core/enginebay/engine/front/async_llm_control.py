"""What ``AsyncLLM`` can be asked beside requests: as ``LLM``, awaited."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
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

__all__ = ["AsyncLLMControl"]


class AsyncLLMControl(ABC):
    """The control half of ``AsyncLLM``; each method is described at that of ``LLM``.

    A cancellation does not take a command back: it is carried out all the same.
    """

    async def sleep(self, level: int = 1) -> None:
        """Give the device's memory back."""
        await self._ask(Sleep(level=level))

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Take the memory again."""
        await self._ask(WakeUp(tags=tuple(tags)))

    async def update_weights(
        self,
        path: str | Path | None = None,
        *,
        tensors: Iterable[tuple[str, Any]] | None = None,
        per_rank: Mapping[int, Iterable[tuple[str, Any]]] | None = None,
        version: str = "",
    ) -> None:
        """Answer with other weights of the same model from here on."""
        command = update_command(path, tensors, per_rank, version)
        if command is not None:
            await self._ask(command)
            return
        update = new_update()
        try:
            await self._ask(StartTensors(update=update))
            for chunk in tensor_commands(update, tensors, per_rank):
                await self._ask(chunk)
            await self._ask(FinishTensors(update=update, version=version))
        finally:
            asked = self._live().client.control(AbortTensors(update=update))  # does nothing once they are in force
            await asyncio.shield(self._answer(asked))

    async def reset_prefix_cache(self) -> None:
        """Forget what the KV cache holds of texts that were."""
        await self._ask(ResetPrefixCache())

    async def collective_rpc(
        self,
        method: str,
        payload: object = b"",
        *,
        per_rank: Sequence[object] | None = None,
        timeout: float | None = None,
    ) -> list[bytes]:
        """Call ``"extension.method"`` of a loaded worker extension on every rank."""
        return list((await self._ask(call_command(method, payload, per_rank, timeout))).values)

    async def start_profile(self, folder: str | Path) -> None:
        """Record what the workers do."""
        await self._ask(profile_command(folder))

    async def stop_profile(self) -> list[Path]:
        """Write what was recorded; the files' paths."""
        return paths_of(await self._ask(StopProfile()))

    async def drain(self, timeout: float | None = None) -> int:
        """Refuse new requests and wait for those that run; how many are unfinished."""
        return int((await self._ask(Drain(timeout=timeout))).facts["unfinished"])

    async def resume(self) -> None:
        """Take requests again after ``drain``."""
        await self._ask(Resume())

    async def swap(
        self,
        *,
        scheduler: str = "",
        runner: str = "",
        executor: str = "",
        sets: Sequence[str] = (),
        exclusive: bool = False,
    ) -> dict[str, str]:
        """Put other plugins in the place of those that run."""
        command = Swap(scheduler=scheduler, runner=runner, executor=executor, sets=tuple(sets), exclusive=exclusive)
        return dict((await self._ask(command)).facts)

    async def scale(
        self,
        *,
        tensor_parallel: int | None = None,
        pipeline_parallel: int | None = None,
        data_parallel: int | None = None,
        exclusive: bool = False,
    ) -> dict[str, str]:
        """Spread each copy of the model over so many workers, or have so many copies."""
        command = Scale(
            tensor_parallel_size=tensor_parallel,
            pipeline_parallel_size=pipeline_parallel,
            data_parallel_size=data_parallel,
            exclusive=exclusive,
        )
        return dict((await self._ask(command)).facts)

    async def restart_workers(self) -> None:
        """Start the workers anew, one group after the other."""
        await self._ask(RestartWorkers())

    async def status(self) -> dict[str, str]:
        """How the engine stands, in words."""
        return dict((await self._ask(ReadStatus())).facts)

    async def health(self) -> EngineHealth:
        """Whether the engine does what it is asked, and how its workers stand; answered at once, also by a hung one."""
        return health_of(await self._ask(ReadStatus()))

    @abstractmethod
    def _live(self) -> Front: ...

    async def _ask(self, command: Command) -> ControlDone:
        return await self._answer(self._live().client.control(checked(command)))

    async def _answer(self, asked: Future[ControlDone]) -> ControlDone:
        client = self._live().client
        waited = asyncio.wrap_future(asked)
        while not (await asyncio.wait([waited], timeout=LOOK_SECONDS))[0]:
            client.check_alive()
        return waited.result()

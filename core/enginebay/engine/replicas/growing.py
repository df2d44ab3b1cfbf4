"""A set of groups that starts more of them when it is asked to, under load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from enginebay.engine.control.tensors import Command
from enginebay.engine.core import EngineCore
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.errors import CapabilityError, InvalidRequest
from enginebay.messages import ControlDone, Scale

__all__ = ["GrowingSet"]


class GrowingSet(ReplicaSet):
    """``another(number, a core whose weights it may have)`` starts a group; ``settings`` are ``ReplicaSet``'s."""

    def __init__(
        self, cores: Sequence[EngineCore], another: Callable[[int, EngineCore], EngineCore], **settings: Any
    ) -> None:
        super().__init__(cores, **settings)
        self._another = another

    def one_more(self) -> int:
        """Start another group; its number. Raises what its start raises, and then nothing has changed."""
        return self.grow(self._another)

    def control(self, command: Command) -> Future[ControlDone]:
        """As ``ReplicaSet``; more groups are started in a thread of their own, while those that there are serve."""
        if isinstance(command, Scale) and command.data_parallel_size is not None:
            self.check_alive()
            return self._grow_to(command.data_parallel_size, alone=_is_alone(command))
        return super().control(command)

    def _grow_to(self, size: int, *, alone: bool) -> Future[ControlDone]:
        running = sum(load is not None for load in self.loads)
        if not alone:
            raise InvalidRequest(
                "data_parallel_size is changed alone: ask for the other sizes by themselves", param="scale"
            )
        if size < running:
            raise CapabilityError(f"{running} groups run, and none is taken away while the engine does: start it anew")
        answer: Future[ControlDone] = Future()

        def grow() -> None:
            try:
                for _ in range(size - running):
                    self.one_more()
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(ControlDone(facts={"groups": str(size)} if size > running else {}))

        self._runtime.spawner.thread("enginebay-grow", grow)
        return answer


def _is_alone(command: Scale) -> bool:
    return command.tensor_parallel_size is None and command.pipeline_parallel_size is None

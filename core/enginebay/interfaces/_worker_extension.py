"""Worker extensions: named methods of a plugin's own that live in every worker, beside the runner.

The descriptor declares which methods may be called; the engine refuses any other before it is sent. A method takes
bytes and returns bytes, whatever they mean, and runs between two steps::

    class Marks:
        def __init__(self, context: WorkerExtensionContext[NoOptions]) -> None:
            self.rank = context.place.rank

        def where(self, payload: bytes) -> bytes:
            return f"rank {self.rank}".encode()

    @hookimpl
    def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[NoOptions]]:
        return [WorkerExtensionPlugin(name="marks", factory=Marks, methods=("where",))]

``LLM.collective_rpc("marks.where")`` then returns one answer for each rank. What a method raises is told to whoever
called it; the engine goes on. An object with a method ``close`` is closed before the runner is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from enginebay.interfaces._device import Device
from enginebay.interfaces._options import Options
from enginebay.interfaces._runner import ModelRunner
from enginebay.messages import RankPlace, WorldPlan

O = TypeVar("O", bound=Options)


@dataclass(frozen=True, kw_only=True)
class WorkerExtensionContext(Generic[O]):
    """Everything a worker extension is given. Frozen; a later minor version may add fields.

    ``runner`` is this worker's, made and not yet loaded; what it has inside is its author's own business.
    """

    options: O
    place: RankPlace
    world: WorldPlan
    device: Device
    runner: ModelRunner[Any]

"""What the engine's own log says of changes that front ends ask for: a line when one begins, one when it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from enginebay.errors import in_words
from enginebay.messages import Control, ControlDone, Drain, RestartWorkers, Scale, Swap
from enginebay.runtime import Clock

__all__ = ["Telling"]


class Telling:
    """``tell`` takes a line, from any thread."""

    def __init__(self, tell: Callable[[str], None], clock: Clock) -> None:
        self._tell = tell
        self._clock = clock

    def begun(self, command: Control) -> Callable[[Future[ControlDone]], None]:
        """Say that it begins; what is to be called when it has ended."""
        what = _named(command)
        if what is None:
            return lambda done: None
        self._tell(f"{what}: begun")
        since = self._clock.now()

        def ended(done: Future[Any]) -> None:
            took = f"after {self._clock.now() - since:.1f} s"
            error = done.exception()
            self._tell(f"{what}: {f'done {took}' if error is None else f'refused or failed {took}: {in_words(error)}'}")

        return ended

    def stopping(self) -> None:
        """Say that the engine's end was asked for."""
        self._tell("stop: asked for by a front end; unfinished requests are aborted")


def _named(command: Control) -> str | None:
    """In few words, as the command line has it; None: nothing is said of it."""
    match command:
        case Swap(scheduler=scheduler, runner=runner, executor=executor, sets=sets):
            kinds = {"scheduler": scheduler, "runner": runner, "executor": executor}
            words = [f"{kind}={name}" for kind, name in kinds.items() if name] + [f"--set {one}" for one in sets]
        case Scale(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, data_parallel_size=data):
            sizes = {"tensor": tensor, "pipeline": pipeline, "data": data}
            words = [f"--{name}-parallel {size}" for name, size in sizes.items() if size is not None]
        case RestartWorkers():
            words = ["--rolling"]
        case Drain():
            words = []
        case _:
            return None
    name = {Swap: "swap", Scale: "scale", RestartWorkers: "restart", Drain: "drain"}[type(command)]
    return " ".join([name, *words])

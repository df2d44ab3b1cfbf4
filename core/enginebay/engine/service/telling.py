"""What the engine's own log says of changes that front ends ask for: a line when one begins, one when it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from enginebay.errors import in_words
from enginebay.messages import Control, ControlDone, Drain, RestartWorkers, Resume, Scale, Swap
from enginebay.runtime import Clock

__all__ = ["Telling"]


class Telling:
    """``tell`` takes a line, from any thread."""

    def __init__(self, tell: Callable[[str], None], clock: Clock) -> None:
        self._tell = tell
        self._clock = clock
        self._drained = False

    def begun(self, command: Control) -> Callable[[Future[ControlDone]], None]:
        """Say that it begins; what is to be called when it has ended."""
        what = _named(command)
        if isinstance(command, Drain | Resume):
            self._drained = False
        if what is None:
            return lambda done: None
        self._tell(f"{what}: begun")
        since = self._clock.now()

        def ended(done: Future[ControlDone]) -> None:
            took = f"after {self._clock.now() - since:.1f} s"
            if (error := done.exception()) is not None:
                self._tell(f"{what}: refused or failed {took}: {in_words(error)}")
            elif left := _unfinished(command, self._clock.wait_future(done, None)):
                self._tell(f"{what}: over {took}, and unfinished: {left}")
            else:
                self._drained = isinstance(command, Drain)
                self._tell(f"{what}: done {took}")

        return ended

    def stopping(self) -> None:
        """Say that the engine's end was asked for."""
        end = "nothing is unfinished" if self._drained else "unfinished requests are aborted"
        self._tell(f"stop: asked for by a front end; {end}")


def _unfinished(command: Control, done: ControlDone) -> int:
    """How many requests a drain has left."""
    return int(done.facts["unfinished"]) if isinstance(command, Drain) else 0


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

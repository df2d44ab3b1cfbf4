"""A runner that goes wrong as it is told, where it is told: for tests of what stands around a worker's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from enginebay.errors import ModelError
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ModelRunner, Options, RunnerCapabilities, RunnerContext, RunnerPlugin
from enginebay.messages import KVCacheGroup, KVCacheSpec, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import HostDevice

_MAIN = getattr(sys.modules["__main__"], "__spec__", None)
if os.environ.get("ILL_IMPORT") == getattr(_MAIN, "name", ""):
    time.sleep(600)


class IllOptions(Options):
    """What goes wrong, and in which method."""

    how: Annotated[str, Field(description="One of the functions of _WAYS; empty: nothing goes wrong.")] = ""
    where: Annotated[str, Field(description="The method in which it does.")] = "load_model"
    chatter: Annotated[int, Field(description="Lines printed on the way.")] = 0
    mark: Annotated[str, Field(description="File for the numbers of this process and of one that it starts.")] = ""


def _refuse() -> None:
    raise ModelError("the model has seven heads: choose another")


def _raise() -> None:
    raise ValueError("asked to fail")


def _kill(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(600)


_WAYS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "refuse": _refuse,
    "raise": _raise,
    "hang": lambda: time.sleep(600),
    "kill": lambda: _kill(signal.SIGKILL),
    "segv": lambda: _kill(signal.SIGSEGV),
    "leave": lambda: os._exit(7),
}


class IllRunner(ModelRunner[IllOptions]):
    """Runs no step."""

    def __init__(self, context: RunnerContext[IllOptions]) -> None:
        super().__init__(context)
        self._at("__init__")

    def _at(self, method: str) -> None:
        options = self.context.options
        if method != options.where:
            return
        for line in range(options.chatter):
            print(f"line {line} of a library")
        if options.mark:
            other = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
            part = Path(f"{options.mark}.part")
            part.write_text(f"{os.getpid()} {other.pid}")
            part.rename(options.mark)
        _WAYS[options.how]()

    def load_model(self) -> None:
        self._at("load_model")

    def kv_cache_spec(self) -> KVCacheSpec:
        layer = KVCacheGroup(layers=(0, 1), block_size=self.context.block_size, bytes_per_block=2048)
        return KVCacheSpec(groups=(layer,))

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self._at("initialize_kv_cache")

    def warm_up(self) -> None:
        self._at("warm_up")

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        raise NotImplementedError

    def in_force(self) -> dict[str, str]:
        return {"attention": "by hand", "kv_cache": "2 layers of 1 KV head"}


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[IllOptions]]:
    """The ill runner."""
    return [
        RunnerPlugin(
            name="ill",
            options=IllOptions,
            factory=IllRunner,
            capabilities=RunnerCapabilities(),
            device=lambda kind: HostDevice(),
            supports=lambda model: None if model.model_type == "fake" else "it only runs fake models",
        )
    ]

"""What tests of a whole ``LLM`` over the fake runner ask of it, and where they look."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from enginebay import LLM, SamplingParams
from enginebay.engine.client import InProcessClient
from enginebay.engine.core import EngineCore

FEW = SamplingParams(max_tokens=9)
TENSOR = ("weight", np.full(4, 1, np.float32))


def client_of(llm: LLM) -> InProcessClient:
    """The client of its only group."""
    return llm._front.client._clients[0]  # type: ignore[attr-defined]  # a set of one


def core_of(llm: LLM) -> EngineCore:
    return client_of(llm)._core


def answer(llm: LLM) -> str:
    return llm.generate("hi", FEW)[0].text


def until_status(llm: LLM, **facts: str) -> None:
    """Wait until its status has these facts; fail after 20 s."""
    until = time.monotonic() + 20
    while not facts.items() <= llm.status().items():
        assert time.monotonic() < until, llm.status()
        time.sleep(0.005)


class Held:
    """A request that runs until it is aborted."""

    def __init__(self, llm: LLM) -> None:
        self._stream = llm.stream("hi", SamplingParams(max_tokens=400))
        next(self._stream)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._stream.close()


def break_line(core: EngineCore) -> None:
    """Break the line to the worker: its loop ends with an error, and its thread with it; wait until that is known."""
    executor: Any = core._parts.executor
    generation = core._parts.generation.current
    executor._session._ours.send(b"not an envelope")
    until = time.monotonic() + 20
    while not core._parts.watch._exits and core._parts.generation.current == generation:  # or known and mended
        assert time.monotonic() < until
        time.sleep(0.002)


def threads() -> list[str]:
    """The names of our threads, sorted."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("enginebay"))

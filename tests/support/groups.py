"""A set of fake engines behind one front end, whose steps a test may hold up, and sinks for its requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from enginebay.engine.admission.admit import Ask
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.errors import EnginebayError, WorkerLost
from enginebay.messages import RequestOutput, SamplingParams
from support.fake_engine import FakeEngine

PATIENCE = 20.0


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


def ask(request_id: str, prompt: str = "hi", max_tokens: int = 3, **params: Any) -> Ask:
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    return Ask(request_id=request_id, prompt_token_ids=tuple(prompt.encode()), params=sampling)


class Sink:
    """Keeps what it gets, and says when it has ended."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[EnginebayError] = []
        self.thread = 0

    def put(self, output: RequestOutput) -> None:
        self.thread = threading.get_ident()
        self.outputs.append(output)

    def fail(self, error: EnginebayError) -> None:
        self.thread = threading.get_ident()
        self.errors.append(error)

    def ended(self) -> bool:
        return bool(self.errors) or any(output.finish_reason is not None for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]


class Groups:
    """A set over fake engines. ``hold(i)`` lets no step of group i end until ``release(i)``."""

    def __init__(self, count: int = 2, *, stop_timeout: float = 5.0, **engine: Any) -> None:
        self.engines = [FakeEngine(**engine) for _ in range(count)]
        self.gates = [threading.Event() for _ in range(count)]
        self.held = [threading.Event() for _ in range(count)]
        self.ends: list[float] = []
        for gate in self.gates:
            gate.set()
        for index, one in enumerate(self.engines):
            one.executor.before = self._before(index)
        self.set = ReplicaSet(
            [one.core for one in self.engines],
            stop_timeout=stop_timeout,
            on_end=lambda: self.ends.append(time.monotonic()),
        )
        self.set.start()

    def _before(self, index: int) -> Callable[[Any], None]:
        def wait(_: Any) -> None:
            if not self.gates[index].is_set():
                self.held[index].set()
            assert self.gates[index].wait(PATIENCE)

        return wait

    def hold(self, index: int) -> None:
        self.gates[index].clear()

    def kill(self, index: int, why: str = "rank 0: the worker ended (signal 9)") -> None:
        """The group's next step is its last, of a lost worker."""

        def lost(_: Any) -> None:
            raise AssertionError("never reached")

        def die() -> None:
            raise WorkerLost(why)

        self.engines[index].executor.before = lost
        self.engines[index].core._execution.check_alive = die  # type: ignore[method-assign]  # the fault under test

    def close(self) -> None:
        for gate in self.gates:
            gate.set()
        self.set.stop()


def run(groups: Groups, *asks: Ask) -> list[Sink]:
    """Sinks of the requests, each ended."""
    sinks = []
    for one in asks:
        sinks.append(Sink())
        groups.set.add_request(one, sinks[-1])
    until(lambda: all(sink.ended() for sink in sinks))
    return sinks

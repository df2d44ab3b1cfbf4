"""Plugins that ask the engine in its own thread, or never come back from it: nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from enginebay.engine.admission.admit import Ask
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.port import EnginePort
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.errors import EnginebayError
from enginebay.interfaces import NoOptions, Policy, RequestView
from enginebay.messages import ReadStatus, RequestOutput, ResetPrefixCache, SamplingParams
from support.fake_engine import FakeEngine


class Kept:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.error: EnginebayError | None = None
        self.ended = threading.Event()

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.ended.set()

    def fail(self, error: EnginebayError) -> None:
        self.error = error
        self.ended.set()


def acting(act: Callable[[], object]) -> type[Policy[NoOptions]]:
    """A policy that acts when it is asked for a key."""

    class Acting(Policy[NoOptions]):
        def key(self, request: RequestView) -> tuple[int]:
            act()
            return (request.arrival_number,)

    return Acting


def client_with(act: Callable[[], object], *, stop_timeout: float = 10.0) -> InProcessClient:
    """The client of an engine whose policy is ``acting``."""
    client = InProcessClient(FakeEngine(policy=acting(act)).core, stop_timeout=stop_timeout)
    client.start()
    return client


def groups_with(act: Callable[[], object]) -> ReplicaSet:
    """Two groups whose policy is ``acting``: what one's thread asks of both must not wait for it either."""
    groups = ReplicaSet([FakeEngine(policy=acting(act)).core for _ in range(2)], stop_timeout=10.0)
    groups.start()
    return groups


MAKES: list[Callable[[Callable[[], object]], InProcessClient | ReplicaSet]] = [client_with, groups_with]


def ask() -> Ask:
    return Ask(request_id="a", prompt_token_ids=(104, 105), params=SamplingParams(max_tokens=3))


@pytest.mark.parametrize("make", MAKES, ids=["one group", "two groups"])
@pytest.mark.parametrize("what", ["stats", "reset", "add", "read"])
def test_a_plugin_that_asks_the_engine_in_its_own_thread_is_told_so(
    what: str, make: Callable[[Callable[[], object]], InProcessClient | ReplicaSet]
) -> None:
    acts: dict[str, Callable[[], object]] = {
        "stats": lambda: client.stats(),
        "reset": lambda: client.control(ResetPrefixCache()),
        "add": lambda: client.add_request(ask(), Kept()),
        "read": lambda: Collector().wait(client),
    }
    client: EnginePort = make(acts[what])
    sink = Kept()
    try:
        client.add_request(ask(), sink)
        assert sink.ended.wait(60)
        assert (
            "Acting: key() raised PluginBroken: a plugin, called in the engine's own thread, asks the engine for "
            "something: it would wait for itself; ask from another thread"
        ) in str(sink.error)
    finally:
        client.stop()


@pytest.mark.parametrize("make", MAKES, ids=["one group", "two groups"])
def test_a_plugin_may_read_the_status_and_ask_for_the_end(
    make: Callable[[Callable[[], object]], InProcessClient | ReplicaSet],
) -> None:
    done: list[object] = []
    client = make(lambda: (done.append(client.control(ReadStatus()).done()), client.abort("none-such")))
    sink = Kept()
    try:
        client.add_request(ask(), sink)
        assert sink.ended.wait(60)
        assert "UnknownRequest: no unfinished request has the id 'none-such'" in str(sink.error)
        assert done == [True]
    finally:
        client.stop()


def test_a_plugin_that_never_comes_back_keeps_no_client_waiting_after_the_end() -> None:  # E2, X13
    release, there = threading.Event(), threading.Event()
    client = client_with(lambda: (there.set(), release.wait(60)), stop_timeout=0.2)
    sink = Kept()
    try:
        client.add_request(ask(), sink)
        assert there.wait(60)
        client.stop()
        assert sink.ended.is_set()
        assert str(sink.error) == "the engine is closed; make a new one"
    finally:
        release.set()
    assert client._loop.join(60)

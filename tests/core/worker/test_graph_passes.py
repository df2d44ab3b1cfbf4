"""A worker gives its runner the graph passes that the runner's module and the worker extensions bring, in order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from enginebay.errors import PluginBroken
from enginebay.messages import InitDevice, InitWorker
from enginebay.worker import Worker
from support.fake_dist import FakeSite, fake_site
from support.scripted_device import ScriptedDevice
from support.workers import LOG, payload

RUNNER = """
from support.workers import ScriptedRunner

SEEN = []

def nothing(graph_module, context):
    pass

def make_runner(context):
    SEEN.extend((one.name, one.package) for one in context.graph_passes)
    return ScriptedRunner(context)

@hookimpl
def enginebay_graph_passes():
    return [GraphPass(name="own", summary="", apply=nothing)]

@hookimpl
def enginebay_register_runners():
    return [RunnerPlugin(name="drawn", factory=make_runner)]
"""
EXTENSION = """
def nothing(graph_module, context):
    pass

@hookimpl
def enginebay_graph_passes():
    return [GraphPass(name="theirs", summary="", apply=nothing, {order})]

@hookimpl
def enginebay_register_worker_extensions():
    return [WorkerExtensionPlugin(name="more", factory=lambda context: None)]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    LOG.clear()
    yield from fake_site(tmp_path / "site", monkeypatch)


def passes_of(site: FakeSite, order: str) -> list[tuple[str, str]]:
    """Start a worker as far as its runner is made; what that was given."""
    module = site.plugin("runners", "drawn", RUNNER)
    site.plugin("worker_extensions", "more", EXTENSION.format(order=order))
    told = msgspec.structs.replace(payload(worker={"extensions": ("more",)}), runner="drawn")
    worker = Worker(told, host=site.host(), make_device=lambda kind: ScriptedDevice("cpu", log=LOG))
    try:
        worker.handle(InitWorker())
        worker.handle(InitDevice())
    finally:
        worker.shutdown()
    return list(sys.modules[module].SEEN)


def test_the_runner_gets_all_of_them_in_order(site: FakeSite) -> None:
    assert passes_of(site, "before=('own',)") == [("theirs", "more-pkg 1.0"), ("own", "drawn-pkg 1.0")]


def test_an_order_that_cannot_be_kept_ends_the_start(site: FakeSite) -> None:
    with pytest.raises(PluginBroken, match=r"^graph pass 'theirs' of more-pkg 1\.0 says it runs after 'nobody', and "):
        passes_of(site, "after=('nobody',)")

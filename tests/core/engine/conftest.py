"""What these tests install: packages of their own, the fake runner, and engines over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM
from support.fake_dist import FakeSite, fake_site
from support.fake_engine import FakeRunner
from support.fake_engines import Installed, install
from support.fake_life import FAILING, write_weights
from support.groups import Groups
from support.moving import Hand, MakeHand
from support.served import Serving, serve


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A folder on ``sys.path`` to install packages into."""
    yield from fake_site(tmp_path / "site", monkeypatch)


@pytest.fixture
def parts(site: FakeSite) -> FakeSite:
    """The usual three, as strangers would ship them."""
    site.executor("uni", "max_world_size=1")
    site.executor("mp", "max_in_flight=4")
    site.runner("v1", "devices=('cpu', 'cuda')", "preference=10", version="1.2")
    site.scheduler("fcfs", "deterministic_order=True")
    return site


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template_child: None) -> Iterator[Installed]:
    """The fake runner as an installed plugin, and a model for it."""
    yield from install(tmp_path, monkeypatch)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[FakeRunner]:
    """The runners that are made, in order."""
    made: list[FakeRunner] = []
    original = FakeRunner.__init__

    def init(self: FakeRunner, context: Any) -> None:
        made.append(self)
        original(self, context)

    monkeypatch.setattr(FakeRunner, "__init__", init)
    return made


@pytest.fixture
def llm(fake: Installed, runners: list[FakeRunner]) -> Iterator[LLM]:
    """A whole engine over the fake runner, which ``runners`` has."""
    with LLM(fake.config()) as llm:
        yield llm


@pytest.fixture
def serving(fake: Installed) -> Iterator[Serving]:
    """An engine that serves front ends of other processes."""
    with serve(fake.config()) as serving:
        yield serving


@pytest.fixture
def nothing_fails() -> Iterator[None]:
    """What a test has put into ``FAILING`` is taken out again."""
    FAILING.clear()
    yield
    FAILING.clear()


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """Other weights, which shout."""
    return write_weights(tmp_path / "loud", 1)


@pytest.fixture
def make_groups() -> Iterator[Callable[..., Groups]]:
    """Makes sets of fake engines, and closes them."""
    made: list[Groups] = []

    def make(*args: Any, **rest: Any) -> Groups:
        made.append(Groups(*args, **rest))
        return made[-1]

    yield make
    for groups in made:
        groups.close()


@pytest.fixture
def hand() -> Iterator[MakeHand]:
    """Makes sets of fake engines that a test turns by hand, and closes them."""
    made: list[Hand] = []

    def make(*args: Any, **rest: Any) -> Hand:
        made.append(Hand(*args, **rest))
        return made[-1]

    yield make
    for one in made:
        one.close()

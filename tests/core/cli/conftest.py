"""The fake site-packages folder of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_dist import FakeSite, fake_site
from support.fake_engines import Installed, install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A folder on ``sys.path`` to install packages into."""
    yield from fake_site(tmp_path / "site", monkeypatch)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template_child: None) -> Iterator[Installed]:
    """The fake runner as an installed plugin, and a model for it."""
    yield from install(tmp_path, monkeypatch)

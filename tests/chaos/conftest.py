"""Fixtures of the tests that kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_engines import Installed, install


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """The fake runner as an installed plugin, and a model for it."""
    yield from install(tmp_path, monkeypatch)

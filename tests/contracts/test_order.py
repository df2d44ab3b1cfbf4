"""The order of the suite: what takes longest begins first."""

from __future__ import annotations

import pytest

from support.repository import ROOT


def test_the_longest_files_exist_and_are_begun_first(request: pytest.FixtureRequest) -> None:
    [conftest] = [one for one in request.config.pluginmanager.get_plugins() if hasattr(one, "LONGEST")]
    longest = [ROOT / "tests" / name for name in conftest.LONGEST]
    assert [path for path in longest if not path.exists()] == []
    assert request.config.getoption("loadscopereorder", False) is False
    paths = [item.path for item in request.session.items]
    here = len([path for path in paths if path in longest])
    assert all(path in longest for path in paths[:here])

"""Lines to workers elsewhere, over both of their transports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.lines import Line, MakeLine, private_folder


@pytest.fixture(params=["tcp", "ipc"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a line listens: an address of this machine, or a folder."""
    if request.param == "tcp":
        return "127.0.0.1"
    return str(private_folder(tmp_path_factory.mktemp("s", numbered=True)))


@pytest.fixture
def make_line(address: str) -> Iterator[MakeLine]:
    """Makes lines that listen at ``address``, and closes them."""
    made: list[Line] = []

    def make(ranks: int = 1, at: str = address, **options: Any) -> Line:
        made.append(Line(at, ranks, **options))
        return made[-1]

    yield make
    for line in made:
        line.line.close()

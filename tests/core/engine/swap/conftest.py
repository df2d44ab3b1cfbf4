"""Engines of the fake runner that tests step by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.fake_engines import Installed
from support.plain_runner import install_plain
from support.swaps import Driven


@pytest.fixture
def make(fake: Installed) -> Iterator[Callable[..., Driven]]:
    """Makes engines, and stops them. The runner "plain" is installed too."""
    install_plain(fake)
    made: list[Driven] = []

    def build(*sets: str, **options: Any) -> Driven:
        made.append(Driven(fake, *sets, **options))
        return made[-1]

    yield build
    for one in made:
        one.core.stop()

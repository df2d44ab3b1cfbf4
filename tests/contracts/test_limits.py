"""The limits in docs/security.md are those in force."""

from __future__ import annotations

import importlib
import re

import pytest

from support.repository import ROOT

UNITS = {"": 1, "bytes": 1, "characters": 1, "ms": 1e-3, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROWS = re.findall(
    r"^\| ([^|]+) \| ([\d,]+) ?(\w*) \| `([\w.]+)` \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE
)


def test_every_row_is_read() -> None:
    table = (ROOT / "docs/security.md").read_text().split("|---|---|---|\n")[1].split("\n\n")[0]
    assert len(ROWS) == len(table.splitlines()) > 30


@pytest.mark.parametrize(("what", "number", "unit", "constant"), ROWS, ids=[row[3] for row in ROWS])
def test_a_limit_is_the_constants(what: str, number: str, unit: str, constant: str) -> None:
    module, _, name = constant.rpartition(".")
    assert int(number.replace(",", "")) * UNITS[unit] == getattr(importlib.import_module(module), name), what

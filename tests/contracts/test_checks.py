"""What `make check` runs is part of the suite, so that a green suite means a clean tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT

BIN = Path(sys.executable).parent


@pytest.mark.timeout(1200)  # mypy without its cache reads all of torch's types
@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports", "--no-cache"]],
    ids=" ".join,
)
def test_tree_is_clean(command: list[str]) -> None:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"

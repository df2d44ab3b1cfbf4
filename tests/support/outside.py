"""An environment of its own for packages that come from outside: wheels built, installed and driven as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from support.repository import ROOT

EXAMPLES = ROOT / "examples"


def run(*argv: str | Path, cwd: Path, timeout: float = 120) -> str:
    """Run a command; its stdout, or an assertion error with all that it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "ENGINEBAY__"))}
    done = subprocess.run(
        [str(a) for a in argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{argv} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheels(sources: Sequence[Path], into: Path) -> list[Path]:
    """The wheels of source trees, built with the installed hatchling: no network."""
    before = set(into.glob("*.whl"))
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", into),
        *sources,
        cwd=into,
    )
    return sorted(set(into.glob("*.whl")) - before)


def build_wheel(source: Path, into: Path) -> Path:
    """The wheel of one source tree."""
    [wheel] = build_wheels([source], into)
    return wheel


class Outside:
    """A virtual environment with enginebay and other packages, installed from wheels.

    What these depend on is lent by the environment that runs the tests, through a path file; path files of that
    environment (its editable enginebay among them) are not followed.
    """

    def __init__(self, folder: Path, sources: Sequence[Path]) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.bin = folder / "env" / "bin"
        site = folder / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        wheels = build_wheels(sources, folder)
        self.install(*wheels)
        (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, *wheels: Path) -> None:
        """Install wheels without what they depend on."""
        python = self.bin / "python"
        run(
            *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"),
            *wheels,
            cwd=self.folder,
        )

    def enginebay(self, *argv: str | Path) -> str:
        """Run the command line of that environment."""
        return run(self.bin / "enginebay", *argv, cwd=self.folder)

    def python(self, *argv: str | Path, timeout: float = 120) -> str:
        """Run that environment's Python."""
        return run(self.bin / "python", *argv, cwd=self.folder, timeout=timeout)

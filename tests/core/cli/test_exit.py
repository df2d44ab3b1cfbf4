"""What the command line makes of the ways in which a command can end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

import enginebay.cli
from enginebay.cli import main
from enginebay.errors import ModelError, StartFailed, WorkerHung, WorkerLost


def end(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> int:
    """The exit code of a command that raises ``error``."""

    @click.command("plugins")
    def command() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(enginebay.cli._Lazy, "get_command", lambda self, ctx, name: command)
    with pytest.raises(SystemExit) as ended:
        main(["plugins"])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (None, 0, ""),
        (ModelError("no model"), 2, "enginebay: no model\n"),
        (StartFailed("it did not"), 3, "enginebay: it did not\n"),
        (WorkerLost("gone"), 4, "enginebay: gone\n"),
        (WorkerHung("stuck"), 5, "enginebay: stuck\n"),
        (OSError(28, "No space left on device"), 70, "enginebay: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ModelError("a\x1b[31mb"), 2, "enginebay: a\\u001b[31mb\n"),
    ],
)
def test_codes_and_lines(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | None,
    code: int,
    printed: str,
) -> None:
    assert end(monkeypatch, error) == code
    assert capsys.readouterr().err == printed


def test_an_internal_error_is_70_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(monkeypatch, KeyError("lost")) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == (
        "enginebay: internal error: KeyError: 'lost'. "
        "This is a fault of enginebay; please report it with the lines above."
    )


def test_an_unknown_command_is_told_its_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generat"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Error: there is no command 'generat'. Did you mean 'generate'? "
        "Commands: chat, check, config, describe, generate, graph, model, plugins, restart, scale, status, stop, swap, "
        "trace, up"
    )


def test_a_reader_that_has_gone_is_no_error_of_ours() -> None:
    program = Path(sys.executable).with_name("enginebay")
    with subprocess.Popen([program, "config", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141

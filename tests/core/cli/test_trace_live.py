"""`enginebay trace --live`: the trace of a running engine, found by its address, and a file."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.cli import _trace_live, main
from enginebay.runfolder import RunFolder
from enginebay.telemetry import Live, Tail, write_where
from enginebay.transport.front_address import FrontAddress, write_address
from support.fake_engines import Installed
from support.records import line, span
from support.up import SECONDS, up

REQUEST = {"gen_ai.operation.name": "chat", "enginebay.request.id": "r"}


@contextlib.contextmanager
def looking(*arguments: str, fake: Installed | None = None) -> Iterator[subprocess.Popen[str]]:
    """``trace --live`` in a process of its own, into a pipe."""
    argv = [sys.executable, "-P", "-c", "from enginebay.cli import main; main()", "trace", "--live", *arguments]
    environ = None if fake is None else fake.environ()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What it says, without the time of day."""
    assert process.stdout is not None
    for text in process.stdout:
        yield re.sub(r"^[\d-]+ \d\d:\d\d:\d\d  ", "", text)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["trace", "--live", *map(str, arguments)])
    return int(end.value.code or 0), capsys.readouterr().err


def test_the_only_engine_is_followed_to_its_end(fake: Installed, tmp_path: Path) -> None:
    with up(fake, tmp_path, "--trace", "trace.jsonl") as engine:
        address = engine.wait_until_ready().address
        with looking(fake=fake) as process:
            said = lines(process)
            assert next(said).startswith("start     engine.start  ")
            argv = [sys.executable, "-P", "-c", "from enginebay.cli import main; main()", "generate", "say:hi"]
            subprocess.run(
                [*argv, "--connect", address], env=fake.environ(), timeout=SECONDS, check=True, stdout=subprocess.PIPE
            )
            assert re.fullmatch(
                r"request   \w+ .+  [\d.]+ ms, first token after [\d.]+ ms, \d+ tokens, stop\n", next(said)
            )
            engine.process.send_signal(signal.SIGTERM)
            assert engine.wait() == 0
            assert list(said) == []
            assert process.wait(SECONDS) == 0
            assert process.stderr is not None
            assert process.stderr.read() == "the engine has ended\n"


def test_a_file_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(line([span(1, "chat a", 0, 1, attributes=REQUEST)]) + b"\n")
    with looking(str(path)) as process:
        said = lines(process)
        assert next(said) == "request   chat a  1.00 ms\n"
        with path.open("ab") as file:
            file.write(line([span(2, "chat b", 0, 2, trace=2, attributes=REQUEST)]) + b"\n")
        assert next(said) == "request   chat b  2.00 ms\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_terminal_shows_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    tail, live = Tail(path), Live()
    page = _trace_live._Page(path, tail, live)
    now = 10**18
    monkeypatch.setattr("time.time_ns", lambda: now)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "40")
    page.show([])
    empty = capsys.readouterr().out
    assert empty.startswith(str(path))
    assert "\nended: nothing yet\n" in empty
    assert empty.endswith("comes when it ends)\n  nothing ended\n")
    path.write_bytes(
        b"damaged\n" + line([span(1, "chat\x1b", now / 1e6 - 9, now / 1e6 - 1, attributes=REQUEST)]) + b"\n"
    )
    spans, _ = tail.read()
    page.show([text for _, text in live.add(spans)])
    tail.close()
    shown = capsys.readouterr().out  # click takes off what is for terminals alone
    assert "\x1b" not in shown
    assert "ended: 1 request; 1 damaged line left out\n" in shown
    assert re.search(r"^request \(1\) ", shown, re.MULTILINE)
    assert re.search(r"^last\n  [\d-]+ \d\d:\d\d:\d\d  request   chat\\u001b  8\.00 ms$", shown, re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "5")
    page.show([])
    cut = capsys.readouterr().out.splitlines()
    assert len(cut) == 4
    assert max(map(len, cut)) == 30


def test_an_engine_without_a_trace_file_says_how_to_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.make()
    try:
        address = FrontAddress(path=folder.path / "front")
        write_address(folder.path, address)
        code, err = refused(capsys, address)
        assert code == 2
        assert err == (
            f"enginebay: the engine at {address} writes no trace file: start it with 'enginebay up --trace FILE', "
            "or with [telemetry] file in engine.toml\n"
        )
        write_where(folder.path, Path("/trace"))
        assert _trace_live.find(str(address)).file == Path("/trace")
        assert _trace_live.find(str(address)).is_written()
        found = _trace_live.find(str(address))
    finally:
        folder.close()
    assert not found.is_written()


def test_what_cannot_be_followed_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused(capsys, tmp_path / "no")
    assert code == 2
    assert err == (
        f"enginebay: {tmp_path}/no: no such file. Follow a trace that is being written: 'enginebay up --trace FILE' "
        "does, and 'enginebay trace --live' alone finds it.\n"
    )
    code, err = refused(capsys, "tcp://127.0.0.1:1")
    assert code == 70
    assert err == (
        "enginebay: no engine of this user listens at tcp://127.0.0.1:1 on this machine. On the machine where it runs, "
        "its trace file itself can be followed: enginebay trace --live FILE\n"
    )
    code, err = refused(capsys, "http://x")
    assert code == 2
    code, err = refused(capsys, "--all")
    assert code == 2
    assert err.endswith("--live shows what comes; the other options are for a FILE that is read once\n")

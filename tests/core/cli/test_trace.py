"""`enginebay trace FILE`: what it shows, and what it writes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from enginebay.cli import _trace_output, main
from enginebay.cli.trace import command
from enginebay.errors import ConfigError
from enginebay.telemetry import SpanRecord
from support.records import span, write


def show(*argv: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in argv], catch_exceptions=False, standalone_mode=False)
    return result.output


def ended(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the whole command line."""
    with pytest.raises(SystemExit) as end:
        main(["trace", *map(str, argv)])
    return int(end.value.code or 0), *capsys.readouterr()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    steps = [span(100 + n, "engine.step", 200 + n, 201 + n, trace=100 + n) for n in range(3)]
    write(path, [span(1, "engine.start", 0, 100), *steps, span(50, "chat tiny", 200, 210, trace=2)])
    return path


def test_trees_then_paths_then_a_table_of_all(file: Path) -> None:
    assert show(file) == "\n".join(
        [
            "trace 00000000000000000000000000000001",
            "engine.start      100.00 ms",
            "",
            "trace 00000000000000000000000000000002",
            "chat tiny       10.00 ms",
            "",
            "3 recorded steps: --all shows each.",
            "",
            "slowest start, trace 00000000000000000000000000000001",
            "  engine.start      100.00 ms 100%  own     100.00 ms",
            "",
            f"slowest step, trace {100:032x}",
            "  engine.step        1.00 ms 100%  own       1.00 ms",
            "",
            "span              count    median ms       p99 ms       own ms   share  failed",
            "start (1)                                              100.000",
            "  engine.start        1      100.000      100.000      100.000  100.0%       0",
            "step (3)                                                 3.000",
            "  engine.step         3        1.000        1.000        3.000  100.0%       0",
            "chat tiny (1)                                           10.000",
            "  chat tiny           1       10.000       10.000       10.000  100.0%       0",
            "",
        ]
    )


def test_all_shows_each(file: Path) -> None:
    assert [line for line in show(file, "--all").splitlines() if line.startswith("trace")] == [
        f"trace {n:032x}" for n in (1, 100, 2, 101, 102)
    ]


def test_one_trace_by_the_beginning_of_its_id(file: Path) -> None:
    shown = show(file, "--trace-id", f"{100:032X}").splitlines()
    assert shown[0] == f"trace {100:032x}"
    assert [line for line in shown if "engine.start" in line] == []
    with pytest.raises(ConfigError) as caught:
        show(file, "--trace-id", "abc")
    assert str(caught.value) == (
        f"{file}: no trace id begins with 'abc'. It holds 5: {1:032x}, {100:032x}, {2:032x}, …"
    )


def many(path: Path, *more: SpanRecord) -> list[str]:
    """What stands before the slowest paths, of thirty traces and more."""
    write(path, [*(span(n, "chat tiny", n, n + 1, trace=n) for n in range(1, 31)), *more])
    return show(path).partition("\n\nslowest")[0].splitlines()


def test_many_requests_are_cut(tmp_path: Path) -> None:
    lines = many(tmp_path / "trace.jsonl")
    assert len([line for line in lines if line.startswith("trace")]) == 20
    assert lines[-1] == "10 more traces: --all shows them."


def test_recoveries_are_shown_however_many_requests_there_are(tmp_path: Path) -> None:
    rare = span(99, "engine.recover", 40, 41, trace=99), span(98, "engine.start", 50, 51, trace=98)
    lines = many(tmp_path / "trace.jsonl", *rare)
    assert [line.split()[0] for line in lines if line.startswith("engine")] == ["engine.recover", "engine.start"]
    assert lines[-1] == "10 more traces: --all shows them."


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [span(1, "a\x1b[31m", 0, 1, attributes={"k": "\u202ev"})])
    output = show(path)
    assert "a\\u001b[31m" in output
    assert "k=\\u202ev" in output
    assert "\x1b" not in output


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.touch()
    assert show(path) == f"{path} holds no spans.\n"


@pytest.mark.parametrize("content", [None, b"{\n"])
def test_what_cannot_be_shown_is_one_line_and_exit_2(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    code, out, err = ended(capsys, path)
    assert (code, out) == (2, "")
    assert err == (
        f"enginebay: {path}: no such file. A trace file is written by enginebay generate --trace FILE, "
        "or by [telemetry] file in engine.toml.\n"
        if content is None
        else f"enginebay: {path}: line 1 is damaged, or no line of OTLP JSON: Input data was truncated.\n"
    )


def test_without_a_file_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(capsys)
    assert (code, out) == (2, "")
    assert err.endswith("Error: say which FILE: 'enginebay generate --trace FILE' writes one; or --live\n")


def test_a_page_and_a_file_for_perfetto(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, events = tmp_path / "page.html", tmp_path / "out.json"
    for _ in range(2):  # what it has made itself it replaces
        code, out, err = ended(capsys, file, "--html", html, "--perfetto", events)
        assert (code, out) == (0, "")
        first, second = err.splitlines()
        assert first.startswith(f"{html}: 5 spans, ")
        assert first.endswith(" kB; open it in a browser")
        assert second == f"{events}: 5 spans, {events.stat().st_size // 1000} kB; open it at ui.perfetto.dev"
    assert "<title>" in html.read_text()
    assert len([e for e in json.loads(events.read_text())["traceEvents"] if e["ph"] == "X"]) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in (html, events)} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "page.html", "trace.jsonl"]


def test_one_trace_alone_can_be_written(file: Path, tmp_path: Path) -> None:
    show(file, "--trace-id", f"{2:032x}", "--perfetto", tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == ["chat tiny"]


def test_a_stroke_is_stdout(file: Path) -> None:
    argv = [sys.executable, "-P", "-m", "enginebay", "trace", str(file), "--perfetto", "-"]
    argv[2:4] = ["-c", "from enginebay.cli import main; main()"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["traceEvents"]
    assert done.stderr == ""


def test_what_others_have_made_is_left_as_it_is(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    for option in ("--html", "--perfetto"):
        with pytest.raises(ConfigError) as caught:
            show(file, option, file)
        assert str(caught.value) == (
            f"{option} {file}: the file that is there was not made so; remove it, or name another"
        )
        with pytest.raises(ConfigError) as caught:
            show(file, option, tmp_path / "no" / "page")
        assert str(caught.value) == (
            f"{option} {tmp_path}/no/page: the folder {tmp_path}/no does not exist. Make it, or name another file."
        )
        with pytest.raises(ConfigError) as caught:
            show(file, option, tmp_path)
        assert str(caught.value) == f"{option} {tmp_path}: cannot be written: Is a directory; name a new file"
    assert file.read_bytes() == before


def test_a_write_that_fails_leaves_nothing(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=r"page: cannot be written: No space left on device; name another file$"):
        show(file, "--html", tmp_path / "page")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_two_outputs_are_two_files(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ended(capsys, file, "--html", tmp_path / "a", "--perfetto", tmp_path / "a")
    assert code == 2
    assert err.endswith("Error: --html and --perfetto are two files: name another for one of them\n")


def test_a_bar_where_reading_takes_long(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_trace_output, "_PATIENCE_SECONDS", 0.0)
    with _trace_output._bar("reading x") as bar:
        bar.move(10, 100)
        bar.move(100, 100)
    assert "reading x" in capsys.readouterr().err
    monkeypatch.setattr(_trace_output, "_PATIENCE_SECONDS", 3600.0)
    with _trace_output._bar("reading x") as bar:
        bar.move(100, 100)
    assert capsys.readouterr().err == ""


def test_whoever_reads_the_output_may_go(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [span(1, "chat tiny", 0, 1)])
    argv = [sys.executable, "-P", "-c", "from enginebay.cli import main; main()", "trace", str(path), "--all"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141

"""``check --probe``: what only workers know comes back, every failure is one line, and nothing is left of the child."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli import main
from enginebay.engine import LLM
from enginebay.errors import EnginebayError
from support.fake_engines import ENGINEBAY
from support.probing import arguments, gone, install_ill, sets, started


@pytest.fixture
def ill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ill runner, installed, and a model for it, which is returned."""
    return install_ill(tmp_path, monkeypatch)


def checked(capsys: pytest.CaptureFixture[str], argv: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that runs in this process."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def engines_own(model: Path, *more: str, **options: Any) -> tuple[int, str]:
    """Exit code and message of the engine's start with the same config."""
    with pytest.raises(EnginebayError) as caught:
        LLM(sets=sets(model, *more, **options))
    return caught.value.exit_code, str(caught.value)


def without_pids(text: str) -> str:
    return re.sub(r"pid \d+", "pid N", text)


def test_what_workers_know_is_in_the_table(ill: Path, capsys: pytest.CaptureFixture[str]) -> None:  # P8
    code, out, err = checked(capsys, arguments(ill, chatter=3))
    assert (code, err) == (0, "")
    table, seconds, loaded = out.split("\n\n")
    rows = {row[0]: row[1:] for line in table.splitlines() if len(row := re.split(r"  +", line.strip())) == 3}
    assert rows["device"] == ["cpu", "chosen by the worker"]
    assert rows["attention"] == ["by hand", "runner 'ill' 1.0"]
    assert rows["kv_cache"] == ["2 layers of 1 KV head", "runner 'ill' 1.0"]
    assert rows["cache size"] == ["16384 bytes", "[cache] num_blocks"]
    assert rows["kv_blocks"] == ["8", "2048 bytes each, 16 tokens"]
    assert rows["longest request"] == [
        "128 tokens",
        "the KV cache has 8 blocks of 16 tokens ([cache] num_blocks), the model takes 512",
    ]
    assert [line.split()[0] for line in seconds.splitlines()[1:]] == [
        "plan",
        "launch",
        "init_worker",
        "init_device",
        "load_model",
        "determine_available_memory",
        "initialize_kv_cache",
        "compile_or_warm_up_model",
        "stop",
    ]
    assert loaded.startswith("loaded from")


def test_json_has_it_too_and_what_the_child_started_is_ended(
    ill: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    code, out, err = checked(capsys, [*arguments(ill, mark=mark), "--json"])
    assert (code, err) == (0, "")
    assert gone([int(pid) for pid in mark.read_text().split()])
    told = json.loads(out)
    names = [item["name"] for item in told["in_force"]]
    assert len(names) == len(set(names))
    assert {"name": "device", "value": "cpu", "why": "chosen by the worker"} in told["in_force"]
    assert told["probe"]["kv_blocks"] == 8
    assert told["probe"]["longest_request"] == 128
    [worker] = told["probe"]["workers"]
    assert worker["rank"] == 0
    assert worker["kv_cache_groups"] == [
        {"layers": [0, 1], "block_size": 16, "bytes_per_block": 2048, "kind": "full", "window": None}
    ]
    assert set(told["probe"]["seconds"]) >= {"init_device", "load_model", "compile_or_warm_up_model"}


@pytest.mark.parametrize(
    ("how", "where", "phase"),
    [
        ("refuse", "load_model", "load_model"),
        ("raise", "load_model", "load_model"),
        ("refuse", "warm_up", "compile_or_warm_up_model"),
        ("raise", "__init__", "init_device"),
    ],
)
def test_an_error_is_the_one_that_the_start_gives(
    ill: Path, capsys: pytest.CaptureFixture[str], how: str, where: str, phase: str
) -> None:
    code, out, err = checked(capsys, arguments(ill, how=how, where=where))
    expected_code, message = engines_own(ill, how=how, where=where)
    first, last = err.splitlines()
    assert (code, out) == (expected_code, "")
    assert code == (2 if how == "refuse" else 3)
    assert without_pids(last) == f"enginebay: {without_pids(message)}"
    assert re.match(rf"the probe failed after \d+\.\d s, in {phase}", first)
    assert "rank 0 (pid " in err


def test_a_request_that_does_not_fit_the_cache_is_told_as_at_the_start(
    ill: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = checked(capsys, arguments(ill, "model.max_model_len=500"))
    assert (code, err.splitlines()[-1]) == (2, f"enginebay: {engines_own(ill, 'model.max_model_len=500')[1]}")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("kill", "the probe's process was killed by SIGKILL in load_model"),
        ("segv", "the probe's process was killed by SIGSEGV in load_model"),
        ("leave", "the probe's process ended with code 7 in load_model, without a word of why"),
    ],
)
def test_a_child_that_dies(ill: Path, capsys: pytest.CaptureFixture[str], how: str, message: str) -> None:
    code, out, err = checked(capsys, arguments(ill, how=how))
    assert (code, out) == (3, "")
    assert err.splitlines()[-1] == f"enginebay: {message}"
    assert ("ill_runner.py" in err) == (how == "segv")  # the stack, which Python tells of a fault


def test_out_of_memory_is_said_when_the_kernel_says_it(
    ill: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr("enginebay.cli._probe._oom_kills", lambda: next(counts))
    assert checked(capsys, arguments(ill, how="kill"))[2].endswith(
        "enginebay: the probe's process was killed by SIGKILL in load_model: out of memory, says the kernel; "
        "choose a smaller model or [cache] memory_bytes, or free memory\n"
    )


def test_the_kernels_counters_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from enginebay.cli import _probe

    (tmp_path / "vmstat").write_text("nr_free_pages 10\noom_kill 3\n")
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    paths = [str(tmp_path / name) for name in ("vmstat", "memory.events", "missing")]
    monkeypatch.setattr(_probe, "_OOM_COUNTERS", paths)
    assert _probe._oom_kills() == 5


def test_a_worker_that_hangs_is_ended_at_its_deadline(ill: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    limits = ("deadlines.load_model=0.5", "deadlines.stop=0.2")
    code, out, err = checked(capsys, arguments(ill, *limits, how="hang"))
    assert time.monotonic() - begun < 30
    assert (code, out) == (3, "")
    assert re.fullmatch(
        r"enginebay: rank 0 did not finish load_model within 0\.5 s \(\[deadlines\] load_model\): "
        r"rank 0 has been in load_model for \d+ s",
        err.splitlines()[-1],
    )


def test_a_child_that_hangs_itself_is_ended_as_well(
    ill: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ILL_IMPORT", "enginebay.cli._probe_child")
    monkeypatch.setattr("enginebay.cli._probe._MARGIN", 0.0)
    code, _, err = checked(capsys, arguments(ill, "deadlines.load_model=1.5"))
    assert code == 3
    assert err.splitlines()[-1] == (
        "enginebay: the probe did not get through plan within 1.5 s ([deadlines] load_model) and was ended"
    )


def test_what_libraries_print_is_shown_on_failure_alone_and_bounded(
    ill: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = checked(capsys, arguments(ill, how="raise", chatter=50_000))
    lines = err.splitlines()
    assert code == 3
    assert lines[0].endswith("; it printed last:")
    assert lines[1:-1] == [f"  line {line} of a library" for line in range(50_000 - 40, 50_000)]


def test_what_the_plan_refuses_starts_no_child(
    ill: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enginebay.cli._probe.subprocess.Popen", None)
    assert checked(capsys, arguments(ill, "executor.use=uni", "parallel.tensor_parallel_size=2"))[0] == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_child_and_what_it_started(ill: Path, tmp_path: Path, number: int, code: int) -> None:
    process, pids = started(ill, tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    assert err.splitlines()[-1] == ("interrupted" if code == 130 else "terminated")
    assert gone(pids)


def test_the_child_dies_with_its_parent(ill: Path, tmp_path: Path) -> None:
    process, pids = started(ill, tmp_path)
    process.kill()
    process.communicate()
    until = time.monotonic() + 10
    while not gone(pids[:1]):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(pids[1], signal.SIGKILL)  # an orphan of the test's own


def test_a_terminal_is_shown_the_phase(ill: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([*ENGINEBAY, *arguments(ill)], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += (data := os.read(ours, 4096))
            except OSError:  # the other end of a terminal was closed
                break
            if not data:
                break
        assert process.stdout is not None
        assert b"kv_blocks" in process.stdout.read()
    os.close(ours)
    assert b"probing: " in shown
    assert process.returncode == 0


REAL = """
import sys
from enginebay.cli import main
try:
    main(["check", "--probe", "--json", "--set", "model.path=" + sys.argv[1], "--set", "cache.num_blocks=32"])
except SystemExit as end:
    heavy = sorted({"torch", "transformers", "ray", "zmq"} & set(sys.modules))
    print(end.code, heavy, file=sys.stderr)
"""


def test_a_real_model_and_a_light_parent(smollm2: Path) -> None:  # P8, P9
    done = subprocess.run(
        [sys.executable, "-P", "-c", REAL, str(smollm2)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stderr == "0 []\n", done.stderr
    told = json.loads(done.stdout)
    rows = {item["name"]: item["value"] for item in told["in_force"]}
    assert rows["device"] in ("cpu", "cuda:0")
    assert (rows["runner"], rows["kernels"]) == ("v2", "built")
    assert (rows["attention"], rows["execution"]) == ("paged_native", "graph, native")
    assert rows["kv_blocks"] == "32"
    assert rows["longest request"] == "512 tokens"
    [group] = told["probe"]["workers"][0]["kv_cache_groups"]
    assert group["bytes_per_block"] == 30 * 2 * 16 * 3 * 64 * 2  # layers, k and v, tokens, KV heads, width, bfloat16
    assert told["probe"]["seconds"]["load_model"] > 0


def test_a_probe_tells_no_sink(ill: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "status.sqlite3"
    checked(capsys, arguments(ill, f"status.options.sqlite.path={file}"))
    assert not file.exists()

"""The report of a probe: whatever comes on its descriptor is one line, and nothing that was said is lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from typing import Any

import pytest

from enginebay.cli import _probe
from enginebay.config import DeadlinesConfig
from enginebay.errors import StartFailed

FINISHED: dict[str, Any] = {
    "in_force": {"attention": "by hand"},
    "runner": "runner 'ill' 1.0",
    "kv_blocks": 8,
    "kv_blocks_why": "[cache] num_blocks",
    "longest_request": 128,
    "longest_request_why": "as max_model_len",
    "workers": [{"device": "cpu", "weight_bytes": 1, "kv_cache_groups": [{"block_size": 16, "bytes_per_block": 2}]}],
    "seconds": {"plan": 0.5},
}
ERROR = {"kind": "ModelError", "phase": "plan", "message": "no", "notes": []}


def lines(**said: object) -> bytes:
    return json.dumps(said).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"\xff\xfe\n",
        b"\n",
        b"[]\n",
        b"5\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        lines(unknown=1),
        lines(phase=5),
        lines(phase="plan", finished=FINISHED),
        lines(error="no"),
        *(lines(error=ERROR | {key: None}) for key in ERROR),
        *(lines(error=ERROR | {"kind": kind}) for kind in ("NoSuchError", "one_line", "__name__", "Iterable")),
        *(lines(finished={k: v for k, v in FINISHED.items() if k != key}) for key in FINISHED),
        *(lines(finished=FINISHED | {key: "\x1b"}) for key in ("in_force", "kv_blocks", "workers", "seconds")),
        lines(finished=FINISHED | {"workers": []}),
        lines(finished=FINISHED | {"workers": [FINISHED["workers"][0] | {"kv_cache_groups": []}]}),
    ],
)
def test_a_report_that_makes_no_sense(line: bytes) -> None:
    state = _probe._Probe()
    with pytest.raises(StartFailed) as caught:
        state.reported(line, lambda phase: None)
    assert re.match(r"^the probe's report makes no sense: \w+", str(caught.value))
    assert str(caught.value).isprintable()
    assert (state.told, state.error, state.phase) == (None, None, "start")


def test_a_report_that_makes_sense() -> None:
    state = _probe._Probe()
    state.reported(lines(phase="plan") + lines(error=ERROR)[:9], lambda phase: None)
    assert state.phase == "plan"
    state.reported(lines(error=ERROR)[9:] + lines(finished=FINISHED), lambda phase: None)
    assert (state.error, state.told) == (ERROR, FINISHED)


@pytest.mark.parametrize("length", [1, 300_000], ids=["one read", "many reads"])
def test_the_last_words_of_a_child_that_has_ended(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """They come after the last look at the report, and the child is gone at the next."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    told = FINISHED | {"runner": "r" * length}
    said: list[bytes] = [lines(finished=told)]

    def has_ended(_: object) -> bool:
        if said:
            os.write(write, said.pop())
            os.close(write)
        return True

    monkeypatch.setattr(_probe, "_has_ended", has_ended)
    state = _probe._Probe()
    with (
        os.fdopen(read, "rb", buffering=0) as report,
        subprocess.Popen(["true"], stdout=subprocess.PIPE) as child,  # any child
    ):
        assert child.stdout is not None
        _probe._follow(child, report, child.stdout, state, DeadlinesConfig(), lambda phase: None)
    assert state.told == told

"""``enginebay generate`` with the real model: the first thing that anybody does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from support.fake_engines import ENGINEBAY


def test_the_capital_of_france(smollm2: Path) -> None:
    done = subprocess.run(
        [*ENGINEBAY, "generate", "What is the capital of France?", "--json", "--set", f"model.path={smollm2}"],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"]
    assert answer["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])

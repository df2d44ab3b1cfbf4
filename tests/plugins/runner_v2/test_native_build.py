"""The library is built once, appears whole or not at all, and is built again when it is damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from enginebay_runner_v2 import native
from enginebay_runner_v2.native import build as building

COMPILER = """#!/bin/sh
echo run >> "{log}"
for last in "$@"; do [ "$before" = -o ] && out=$last; before=$last; done
case "$*" in *-shared*) sleep {pause};; esac
echo {content} > "$out"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler(tmp_path: Path, *, content: str = "made", pause: float = 0, name: str = "cxx") -> tuple[Path, Path]:
    """A script in the compiler's place, and where it writes a line per run."""
    script, log = tmp_path / name, tmp_path / f"{name}.log"
    script.write_text(COMPILER.format(log=log, content=content, pause=pause))
    script.chmod(0o755)
    return script, log


def runs(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_built_once_and_found_then(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, log = compiler(tmp_path)
    monkeypatch.setenv("CXX", str(script))
    assert building.find() is None
    library = building.build()
    assert library.read_bytes().startswith(b"made")
    first = runs(log)
    assert building.build() == library == building.find()
    assert runs(log) == first
    assert [path.name for path in library.parent.iterdir() if path.name.startswith(".build")] == []


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_damaged_library_is_built_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path)[0]))
    library = building.build()
    whole = library.read_bytes()
    library.write_bytes(whole[:keep] if keep >= 0 else whole[:-1] + b"?")
    assert building.find() is None
    assert building.build().read_bytes() == whole


def test_another_compiler_builds_its_own_and_none_takes_what_is_there(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path)[0]))
    first = building.build()
    monkeypatch.setenv("CXX", str(compiler(tmp_path, name="other", content="other")[0]))
    assert building.build() != first
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert building.find() in list(first.parent.glob("*.so"))
    assert native.why_not() is None


def test_without_a_compiler_there_is_a_reason(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert native.why_not() == (
        "no C++ compiler (c++, g++ or clang++; or set CXX), so steps run on torch's own operators"
    )
    with pytest.raises(native.BuildFailed, match="no C\\+\\+ compiler"):
        building.build()


def test_what_the_compiler_says_is_passed_on(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cxx"
    script.write_text("#!/bin/sh\necho warning >&2\necho 'x.cpp:1: error: no such thing' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(native.BuildFailed, match=r"cxx ended with 1: x\.cpp:1: error: no such thing"):
        building.build()
    assert building.find() is None


def test_a_cache_that_cannot_be_written_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file")
    monkeypatch.setenv("CXX", str(compiler(tmp_path)[0]))
    with pytest.raises(native.BuildFailed, match="set ENGINEBAY_CACHE to another folder"):
        building.build()


def test_two_processes_at_once_build_one(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, log = compiler(tmp_path, pause=1)
    monkeypatch.setenv("CXX", str(script))
    code = "from enginebay_runner_v2.native.build import build; print(build())"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=120)[0] for process in both}
    assert len(said) == 1
    assert runs(log) == len(list(Path(building.__file__).parent.glob("*.cpp"))) + 1


def test_the_reason_and_the_search_import_no_torch(cache: Path) -> None:
    code = "import sys; from enginebay_runner_v2 import native; native.why_not(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_a_folder_that_gives_no_leave_is_a_reason(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path)[0]))
    assert (building.unwritable(), native.why_not()) == (None, None)
    cache.write_text("a file")
    assert building.unwritable() == cache
    assert native.why_not() == (
        f"cannot write to {cache} (set ENGINEBAY_CACHE to another folder), so steps run on torch's own operators"
    )
    cache.unlink()
    monkeypatch.setattr("os.access", lambda path, mode: False)  # as on a file system that is mounted read-only
    assert building.unwritable() == tmp_path


def test_a_build_goes_on_where_the_last_one_was_ended(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is when the engine runs for less time than the build takes."""
    script, log = compiler(tmp_path)
    ended, first = tmp_path / "ended", min(Path(building.__file__).parent.glob("*.cpp"))
    lines = script.read_text().splitlines()
    lines.insert(1, f'[ -e "{ended}" ] && exit 9')
    script.write_text("\n".join([*lines, f'case "$*" in */{first.name}*) touch "{ended}";; esac\n']))
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # one file after the other
    _, files = building.parts()
    with pytest.raises(native.BuildFailed, match="ended with 9"):
        building.build()
    assert building.parts() == (1, files)
    ended.unlink()
    done = runs(log)
    library = building.build()
    assert runs(log) - done == files  # all but one, and linking
    assert [path.name for path in library.parent.iterdir() if path.name != ".lock"] == [library.name]
    assert building.parts() == (0, files)


def test_objects_that_cannot_be_linked_are_made_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, _ = compiler(tmp_path)
    whole = script.read_text()
    script.write_text(whole.replace("*-shared*) sleep 0;;", "*-shared*) exit 8;;"))
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(native.BuildFailed, match="ended with 8"):
        building.build()
    assert building.parts()[0] == 0

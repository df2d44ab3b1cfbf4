"""Run folders: private, locked while the engine lives, removed with it, and found when it died."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from enginebay.errors import ConfigError, StartFailed
from enginebay.runfolder import (
    MAX_SOCKET_PATH,
    LazyRunFolder,
    RunFolder,
    folders_of,
    live_folders,
    run_root,
    socket_path,
)
from support.forks import in_a_fork

HOLDER = """
import sys, time
from pathlib import Path
from enginebay.runfolder import RunFolder
folder = RunFolder.make(Path(sys.argv[1]))
folder.record("process", "1")
for name in sys.argv[2:]:
    folder.record("segment", name)
(folder.path / "front").write_text("")
(folder.path / "deep").mkdir()
(folder.path / "deep" / "file").write_text("")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path, as sockets need it."""
    path = Path(tempfile.mkdtemp(prefix="eb-"))
    yield path / "run"
    shutil.rmtree(path)


def holder(root: Path, *segments: str) -> tuple[subprocess.Popen[str], Path]:
    """Another engine with a folder of its own."""
    argv = [sys.executable, "-P", "-c", HOLDER, str(root), *segments]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def test_a_folder_is_private_and_goes_with_close(root: Path) -> None:
    old = os.umask(0)
    try:
        folder = RunFolder.make(root)
    finally:
        os.umask(old)
    for path, mode in ((root, 0o700), (folder.path, 0o700), (folder.path / "manifest", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert (folder.path / "lock").read_text() == f"{os.getpid()}\n"
    assert live_folders(root) == [folder.path]
    folder.close()
    folder.close()
    assert list(root.iterdir()) == []
    assert live_folders(root) == []


@pytest.mark.parametrize("mask", [0o077, 0o777])
def test_the_umask_does_not_lock_us_out(root: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        folder = RunFolder.make(root)
        folder.record("port", "1")
        folder.close()
    finally:
        os.umask(old)
    assert list(root.iterdir()) == []


def test_two_engines_never_share_a_folder(root: Path) -> None:  # X11
    def make(_: int) -> Path:
        folder = RunFolder.make(root)
        folder.record("process", "1")
        made.append(folder)
        return folder.path

    made: list[RunFolder] = []
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(make, range(40)))
    assert len(set(paths)) == 40
    assert live_folders(root) == sorted(paths)
    for folder in made:
        folder.close()


def test_what_a_killed_engine_left_is_removed_and_what_a_living_one_has_is_not(root: Path) -> None:  # X11
    segment = Path(f"/dev/shm/enginebay-test-{os.getpid()}")
    segment.write_text("x")
    dead, dead_path = holder(root, segment.name)
    alive, alive_path = holder(root)
    kill(dead)
    assert dead_path.exists()
    assert live_folders(root) == [alive_path]
    ours = RunFolder.make(root)
    assert not dead_path.exists()
    assert not segment.exists()
    assert (alive_path / "deep" / "file").exists()
    kill(alive)
    ours.close()
    RunFolder.make(root).close()
    assert list(root.iterdir()) == []


def test_a_stopped_engine_is_alive(root: Path) -> None:
    other, path = holder(root)
    other.send_signal(signal.SIGSTOP)
    RunFolder.make(root).close()
    assert path.exists()
    kill(other)


def test_all_of_a_process_are_known_until_they_are_gone(root: Path) -> None:
    ours = {RunFolder.make(root), RunFolder.make(root)}
    process, path = holder(root)
    assert folders_of(process.pid, root) == [path]
    assert set(folders_of(os.getpid(), root)) == {folder.path for folder in ours}
    kill(process)
    assert folders_of(process.pid, root) == [path]
    for folder in ours:
        folder.close()
    RunFolder.make(root).close()
    assert folders_of(process.pid, root) == folders_of(os.getpid(), root) == []


def test_what_is_not_ours_in_the_root_is_not_touched(root: Path) -> None:
    RunFolder.make(root).close()
    (root / "notes").mkdir()
    (root / "notes" / "file").write_text("mine")
    (root / "0123abcd").mkdir()
    (root / "0123abcd" / "file").write_text("no lock: nobody's")
    (root / "aaaaaaaa").symlink_to("/etc")
    (root / "bbbbbbbb").mkdir()  # empty: somebody died between the folder and its lock
    RunFolder.make(root).close()
    assert sorted(path.name for path in root.iterdir()) == ["0123abcd", "aaaaaaaa", "notes"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b"])
def test_a_manifest_cannot_lead_out_of_dev_shm(root: Path, name: str) -> None:
    dead, path = holder(root)
    kill(dead)
    with (path / "manifest").open("a") as manifest:
        manifest.write(f"segment {name}\n")
    RunFolder.make(root).close()
    assert not path.exists()
    assert Path("/etc/passwd").exists()


def test_a_resource_is_written_down_at_once(root: Path) -> None:
    folder = RunFolder.make(root)
    folder.record("segment", "enginebay-none")
    folder.record("port", "127.0.0.1:5 of rank 3")
    assert (folder.path / "manifest").read_text() == "segment enginebay-none\nport 127.0.0.1:5 of rank 3\n"
    for kind, name in (("a b", "x"), ("a", "x\ny"), ("a", "\x1b[2J")):
        with pytest.raises(ValueError, match="a kind of one word"):
            folder.record(kind, name)
    folder.close()


def test_a_forked_child_does_not_remove_its_parents_folder(root: Path) -> None:
    folder = RunFolder.make(root)
    assert in_a_fork(folder.close) == 0
    assert live_folders(root) == [folder.path]
    folder.close()


def test_a_root_that_others_can_move_or_enter_is_refused(root: Path) -> None:
    root.parent.joinpath("elsewhere").mkdir(mode=0o700)
    root.symlink_to(root.parent / "elsewhere")
    with pytest.raises(ConfigError, match=r"run, is a symbolic link, which somebody else may move: remove it"):
        RunFolder.make(root)
    assert live_folders(root) == []
    root.unlink()
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"has mode 0755, and others must not get in: chmod 700 {root}; or set ENG"):
        RunFolder.make(root)
    root.rmdir()
    root.write_text("")
    with pytest.raises(ConfigError, match="is no folder: remove it"):
        RunFolder.make(root)


def test_a_foreign_owner_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        RunFolder.make(root)


def test_a_root_that_cannot_be_made_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_RUN", str(tmp_path / "no" / "such" / "run"))
    with pytest.raises(ConfigError, match=r"no folder for running engines can be made at .*No such file"):
        RunFolder.make()


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * MAX_SOCKET_PATH)
    with pytest.raises(ConfigError, match=r"is too deep: .* 107 bytes that Linux allows; set ENGINEBAY_RUN"):
        RunFolder.make(deep)
    assert socket_path(Path("/tmp"), "x" * 102) == Path("/tmp", "x" * 102)
    with pytest.raises(ConfigError, match="has 108 bytes, and Linux allows 107"):
        socket_path(Path("/tmp"), "x" * 103)


def test_where_folders_go(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", "/somewhere")
    fallback = Path(f"/somewhere/enginebay-{os.getuid()}")
    assert run_root(environ={"ENGINEBAY_RUN": "/x", "XDG_RUNTIME_DIR": str(root)}) == Path("/x")
    assert run_root(environ={"XDG_RUNTIME_DIR": str(root)}) == root / "enginebay"
    assert run_root(environ={}) == fallback
    assert run_root(environ={"XDG_RUNTIME_DIR": ""}) == fallback
    assert run_root(environ={"XDG_RUNTIME_DIR": "relative"}) == fallback
    assert run_root(environ={"XDG_RUNTIME_DIR": "/no/such/folder"}) == fallback
    assert run_root(environ={"XDG_RUNTIME_DIR": str(root / ("x" * 90))}) == fallback
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert run_root(environ={"XDG_RUNTIME_DIR": str(root)}) == fallback


def test_a_lazy_folder_is_made_when_it_is_needed(root: Path) -> None:
    folder = LazyRunFolder(root)
    assert not root.exists()
    folder.record("process", "7")
    assert (folder.path() / "manifest").read_text() == "process 7\n"
    assert folder.path() == folder.path()
    folder.close()
    folder.close()
    assert list(root.iterdir()) == []
    with pytest.raises(StartFailed, match="the engine has ended"):
        folder.path()
    LazyRunFolder(root).close()

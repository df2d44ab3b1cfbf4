"""What engines leave: their folders, told from others', whether anybody holds them, and how one is removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["NAME_BYTES", "SEGMENT", "SHM", "fault", "folders", "is_held", "maker", "remove", "sweep_root", "take_lock"]

NAME_BYTES: Final = 4
"""Random bytes of a folder's name."""

SHM: Final = Path("/dev/shm")  # noqa: S108  # where Linux keeps named segments; only what the manifest names is touched
SEGMENT: Final = "segment"


def fault(base: Path) -> str | None:
    """What keeps others from being kept out, and what to do about it."""
    about = base.lstat()
    if stat.S_ISLNK(about.st_mode):
        return "is a symbolic link, which somebody else may move: remove it"
    if not stat.S_ISDIR(about.st_mode):
        return "is no folder: remove it"
    if about.st_uid != os.getuid():
        return f"belongs to user {about.st_uid}, not to {os.getuid()}: have it removed"
    if (mode := stat.S_IMODE(about.st_mode) & 0o777) != 0o700:
        return f"has mode {mode:04o}, and others must not get in: chmod 700 {base}"
    return None


def folders(base: Path) -> Iterator[Path]:
    """What is named as our folders are, and is a folder of ours; anything else in the root is nobody's to touch."""
    if not base.is_dir() or fault(base) is not None:
        return
    with os.scandir(base) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names:
        if len(name) == 2 * NAME_BYTES and set(name) <= set("0123456789abcdef"):
            yield base / name


def take_lock(path: Path, flags: int) -> int:
    """The open lock file, held. Raises ``BlockingIOError`` when another holds it, and when it was removed meanwhile."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:
            raise BlockingIOError("the lock was removed by who held it before")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def maker(path: Path) -> str:
    """The number of the process that made the folder, as it wrote it down; "" when there is no lock."""
    with contextlib.suppress(OSError):
        return (path / "lock").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def is_held(path: Path) -> bool:
    """Whether somebody lives who has the folder."""
    try:
        os.close(take_lock(path / "lock", os.O_RDWR))
    except BlockingIOError:
        return True
    except OSError:  # gone, or not yet there
        return False
    return False


def sweep_root(base: Path) -> None:
    """Remove the folders of dead engines: those whose lock we get, and those without anything in them."""
    for path in folders(base):
        try:
            lock = take_lock(path / "lock", os.O_RDWR)
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # not empty: it is being filled, or nothing that we know
                path.rmdir()
            continue
        except OSError:  # held; or not to be opened, and then not to be judged
            continue
        try:
            remove(path)
        except OSError:
            continue  # what cannot be removed now is there for the next start
        finally:
            os.close(lock)


def remove(path: Path) -> None:
    """Remove the named segments, then the folder; the lock goes last, so that one killed in the middle is found."""
    with contextlib.suppress(OSError):
        for line in (path / "manifest").read_text(encoding="utf-8", errors="replace").splitlines():
            kind, _, name = line.partition(" ")
            if kind == SEGMENT:
                _unlink_segment(name)
    with contextlib.suppress(FileNotFoundError):
        with os.scandir(path) as entries:
            inside = [entry for entry in entries if entry.name not in ("lock", "manifest")]
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)
        for name in ("manifest", "lock"):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def _unlink_segment(name: str) -> None:
    """Remove a segment of ours; a name that leads anywhere else is not believed."""
    path = SHM / name
    if "/" in name or not name.strip("."):
        return
    with contextlib.suppress(OSError):
        about = path.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid():
            path.unlink()

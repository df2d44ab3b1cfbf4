"""A run folder from its making to its end, and where they all lie."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from enginebay.errors import ConfigError, StartFailed
from enginebay.runfolder._leftovers import NAME_BYTES, fault, folders, is_held, maker, remove, sweep_root, take_lock
from enginebay.runfolder._remains import remains_of

__all__ = [
    "MAX_SOCKET_PATH",
    "LazyRunFolder",
    "RunFolder",
    "folders_of",
    "live_folders",
    "run_root",
    "socket_path",
    "sweep",
]

MAX_SOCKET_PATH: Final = 107
"""Bytes of the longest path that a Unix socket can have on Linux, without the zero at its end."""

_ROOM_FOR_NAMES: Final = 24
"""Bytes that the name of a socket in the folder may have, with its slash."""

_TRIES: Final = 16


class RunFolder:
    """One engine's own folder. Made by ``make``, held until ``close`` or the process's end, however it comes."""

    def __init__(self, path: Path, lock: int, manifest: int) -> None:
        self.path = path
        self._lock = lock
        self._manifest = manifest
        self._pid = os.getpid()
        self._is_open = True

    @classmethod
    def make(cls, root: Path | None = None) -> RunFolder:
        """A new folder of mode 0700 under ``root``; the folders of dead engines there are removed first.

        ``root``: ENGINEBAY_RUN, else XDG_RUNTIME_DIR/enginebay, else enginebay-UID where temporary files go.
        Raises ``ConfigError`` when the root is no private folder of ours, or too long for the sockets in it.
        """
        base = _checked_root(root)
        sweep_root(base)
        for _ in range(_TRIES):
            path = base / os.urandom(NAME_BYTES).hex()
            with contextlib.suppress(FileExistsError, FileNotFoundError, BlockingIOError):
                # the latter two: somebody who cleans met the folder before it was locked; it is theirs now
                os.mkdir(path, 0o700)
                os.chmod(path, 0o700)  # whatever the umask says
                lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
                try:
                    os.fchmod(lock, 0o600)
                    os.write(lock, f"{os.getpid()}\n".encode())
                    manifest = os.open(path / "manifest", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
                    os.fchmod(manifest, 0o600)
                except BaseException:
                    os.close(lock)  # the next start removes it
                    raise
                return cls(path, lock, manifest)
        raise StartFailed(f"no run folder could be made in {base} in {_TRIES} tries; is somebody removing them?")

    def record(self, kind: str, name: str) -> None:
        """Write down what is about to be taken, so that it can be found when this process is gone. Thread-safe.

        A ``name`` of kind "segment" is a file of /dev/shm, which is removed with the folder; one of kind "process" an
        entry of the environment that a worker and all that it starts bear, by which ``remains`` finds them; other kinds
        are for people to read.
        """
        line = f"{kind} {name}"
        if not line.isprintable() or " " in kind:
            raise ValueError(f"a resource has a kind of one word and a name of printable characters, not {line!r:.200}")
        os.write(self._manifest, f"{line}\n".encode())  # one write: the line is whole or not there

    def remains(self) -> tuple[str, ...]:
        """What was recorded and is still there, in words."""
        if not self._is_open:
            return ()
        return remains_of((self.path / "manifest").read_text(encoding="utf-8", errors="replace").splitlines())

    def close(self) -> None:
        """Remove the folder and all in it; idempotent. In a forked child it does nothing: it is the parent's."""
        if self._is_open and os.getpid() == self._pid:
            self._is_open = False
            try:
                remove(self.path)
            finally:
                os.close(self._manifest)
                os.close(self._lock)


class LazyRunFolder:
    """A run folder that is made when it is first needed: most engines of one process never need one. Thread-safe."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._guard = threading.Lock()
        self._folder: RunFolder | None = None
        self._is_closed = False

    def path(self) -> Path:
        """The folder. Raises what ``RunFolder.make`` raises."""
        return self._made().path

    def record(self, kind: str, name: str) -> None:
        """As ``RunFolder.record``."""
        self._made().record(kind, name)

    def remains(self) -> tuple[str, ...]:
        """What was recorded and is still there, in words; as far as it can be seen: segments, and marked processes."""
        with self._guard:
            folder = self._folder
        return () if folder is None else folder.remains()

    def close(self) -> None:
        """Remove the folder if it was made; it cannot be made afterwards. Idempotent."""
        with self._guard:
            self._is_closed = True
            if self._folder is not None:
                self._folder.close()

    def _made(self) -> RunFolder:
        with self._guard:
            if self._is_closed:
                raise StartFailed("the engine has ended, and its run folder with it")
            if self._folder is None:
                self._folder = RunFolder.make(self._root)
            return self._folder


def run_root(root: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where run folders go; nothing is made. What the environment names is taken as it is, or, for XDG, if usable."""
    if root is not None:
        return root.absolute()
    if named := environ.get("ENGINEBAY_RUN"):
        return Path(named).absolute()
    fallback = Path(tempfile.gettempdir()).absolute() / f"enginebay-{os.getuid()}"
    runtime_dir = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(runtime_dir):  # unset, or against its specification
        return fallback
    candidate = Path(runtime_dir) / "enginebay"
    return candidate if _is_ours(Path(runtime_dir)) and _fits(candidate) else fallback


def live_folders(root: Path | None = None) -> list[Path]:
    """The folders of engines of this user that run now, by name."""
    return [path for path in folders(run_root(root)) if is_held(path)]


def folders_of(pid: int, root: Path | None = None) -> list[Path]:
    """Those that this process has made, whether it lives or not: an engine has one, and each of its groups may."""
    return [path for path in folders(run_root(root)) if maker(path) == str(pid)]


def sweep(root: Path | None = None) -> None:
    """Remove what dead engines have left, as the next start would."""
    sweep_root(run_root(root))


def socket_path(folder: Path, name: str) -> Path:
    """``folder/name``, when a Unix socket can have that path; else ``ConfigError``."""
    path = folder / name
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the socket path {path} has {length} bytes, and Linux allows {MAX_SOCKET_PATH}: "
            "set ENGINEBAY_RUN to a shorter folder"
        )
    return path


def _checked_root(root: Path | None) -> Path:
    base = run_root(root)
    try:
        base.mkdir(mode=0o700, parents=root is not None)
        base.chmod(0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(
            f"no folder for running engines can be made at {base}: {error.strerror}; set ENGINEBAY_RUN to another"
        ) from None
    if (wrong := fault(base)) is not None:
        raise ConfigError(f"the folder for running engines, {base}, {wrong}; or set ENGINEBAY_RUN to another")
    if not _fits(base):
        raise ConfigError(
            f"the folder for running engines, {base}, is too deep: a socket in it would have a path of more than the "
            f"{MAX_SOCKET_PATH} bytes that Linux allows; set ENGINEBAY_RUN to a shorter one"
        )
    return base


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_uid == os.getuid() and os.access(path, os.W_OK | os.X_OK)
    return False


def _fits(base: Path) -> bool:
    return len(os.fsencode(base)) + 1 + 2 * NAME_BYTES + _ROOM_FOR_NAMES <= MAX_SOCKET_PATH

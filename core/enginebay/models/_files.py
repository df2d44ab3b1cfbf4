"""Small files of a model folder: JSON read with errors that say what to do, and written to the disk for good."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from enginebay.errors import ModelError, one_line

MAX_FILE_BYTES = 32 << 20
"""Of a file of JSON or text; the largest published ones, indexes of thousands of shards' tensors, have about 10 MB."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises ``ModelError`` when it is missing, unreadable or something else."""
    raw = read_bytes(path, MAX_FILE_BYTES)
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(one_line(f"{path} is not valid JSON: {error}")) from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def read_text(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """The text in ``path``, of ``most`` bytes; raises ``ModelError`` like ``read_json``."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(one_line(f"cannot read {path}: {error}")) from None


def read_bytes(path: Path, most: int) -> bytes:
    """What is in ``path``; raises ``ModelError`` when it is missing, unreadable, or has more than ``most`` bytes."""
    if not has_file(path):
        raise ModelError(f"{path.parent} has no {path.name}")
    try:
        with open_file(path) as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > most:
        raise ModelError(f"cannot read {path}: it has more than {most >> 20} MiB")
    return raw


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read; raises ``ModelError`` for what is none, ``OSError`` when it cannot be opened.

    Looked at once it is open: a pipe that took its name meanwhile is not waited for.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if (what := _what(os.fstat(fd).st_mode)) is not None:
            raise ModelError(f"cannot read {path}: it is {what}, no regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def write_json(path: Path, value: object) -> None:
    """Write ``value`` and flush it to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def is_file(path: Path) -> bool:
    """Whether ``path`` is a regular file; raises ``ModelError`` when that cannot be known (no permission)."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def has_file(path: Path) -> bool:
    """The same for a name that only a regular file may have; raises ``ModelError`` for a folder or a pipe as well."""
    mode = _mode(path)
    if mode is not None and (what := _what(mode)) is not None:
        raise ModelError(f"cannot read {path}: it is {what}, no regular file")
    return mode is not None


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder; raises ``ModelError`` when that cannot be known."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_there(path: Path) -> bool:
    """Whether ``path`` is anything at all; raises ``ModelError`` when that cannot be known."""
    return _mode(path) is not None


def _mode(path: Path) -> int | None:
    """What ``path`` is, links followed, as in ``stat``; None: nothing. ``Path.is_file`` raises for some of these.

    A link that leads nowhere is not nothing: who put it there meant a file.
    """
    try:
        return path.stat().st_mode
    except ValueError:  # a zero byte
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            if path.is_symlink():
                raise ModelError(one_line(f"cannot read {path}: it is a link that leads nowhere")) from error
            return None
        raise ModelError(one_line(f"cannot read {path}: {error.strerror}")) from error


def _what(mode: int) -> str | None:
    """What it is instead of a regular file; None: it is one."""
    if stat.S_ISREG(mode):
        return None
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

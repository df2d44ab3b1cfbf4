"""The user's cache of imported models: where it lies, its lock, and how a folder appears in it whole or not at all.

Decision: a folder is built under ``.partial/NAME/`` beside its place and moved by one rename; an exclusive lock per
name makes a second process wait, and whoever holds the lock may delete what is left under ``.partial/NAME/``, because
only a killed import leaves anything there. A violating change writes under the final name, or deletes without the lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError
from enginebay.models._files import read_json, sync, write_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
RECORD = "enginebay.json"


def cache_home() -> Path:
    """The cache folder: ``$ENGINEBAY_CACHE``, else ``$XDG_CACHE_HOME/enginebay``, else ``~/.cache/enginebay``."""
    if own := os.environ.get("ENGINEBAY_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).absolute() / "enginebay"
    return Path.home() / ".cache" / "enginebay"


def models_home() -> Path:
    """Where imported models lie."""
    return cache_home() / "models"


def check_name(name: str) -> str:
    """``name`` if it can be a folder's name here; raises ``ModelError``."""
    if not _NAME.fullmatch(name):
        raise ModelError(f"'{name}' cannot be a model's name: letters, digits, and . _ + - after the first character")
    return name


@dataclass(frozen=True, kw_only=True)
class Place:
    """The lock of one name is held: ``final`` may appear, ``partial`` is a new, empty folder for what is not done."""

    final: Path
    partial: Path
    lock_fd: int

    def publish(self, built: Path, record: Mapping[str, Any]) -> Path:
        """Put ``built`` under the final name, with ``record`` beside its files; an older one gives way."""
        write_json(built / RECORD, dict(record))
        sync(built)
        if self.final.exists():
            os.rename(self.final, self.partial / "replaced")  # mapped by a running engine, its files live on
        os.rename(built, self.final)
        sync(self.final.parent)
        return self.final


@contextmanager
def place(name: str) -> Iterator[Place]:
    """Wait for the lock of ``name``, and clear away what a killed import left; at the end, all but ``final`` goes."""
    home = models_home()
    partials, locks = home / ".partial" / check_name(name), home / ".locks"
    try:
        partials.mkdir(parents=True, exist_ok=True)
        locks.mkdir(exist_ok=True)
        lock_fd = os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ModelError(
            f"cannot write to the cache {home}: {error.strerror}; set ENGINEBAY_CACHE to another folder"
        ) from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        for leftover in partials.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(dir=partials))
        try:
            yield Place(final=home / name, partial=partial, lock_fd=lock_fd)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(lock_fd)


def imported() -> dict[str, dict[str, Any]]:
    """The record of each model in the cache, by name, sorted."""
    try:
        folders = sorted(f for f in models_home().iterdir() if not f.name.startswith("."))
    except OSError:
        return {}
    return {f.name: _record(f / RECORD) for f in folders if os.path.isfile(f / RECORD)}


def _record(path: Path) -> dict[str, Any]:
    """The record, or an empty one when it is damaged: one bad folder must not hide the others."""
    try:
        return read_json(path)
    except ModelError:
        return {}

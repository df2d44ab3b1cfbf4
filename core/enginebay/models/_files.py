"""Small files of a model folder: JSON read with errors that say what to do, and written to the disk for good."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError

_MAX_MESSAGE = 1000


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises ``ModelError`` when it is missing, unreadable or something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def write_json(path: Path, value: object) -> None:
    """Write ``value`` and flush it to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def one_line(text: str) -> str:
    """Text that holds words of a stranger's file, made fit for one line: control characters gone, not endless."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= _MAX_MESSAGE else f"{clean[: _MAX_MESSAGE - 1]}…"


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

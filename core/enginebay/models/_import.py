"""Bring a model into the cache: from a GGUF file, or from a Python package that carries one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from enginebay.errors import ModelError, one_line
from enginebay.models._cache import Place, check_name, imported, models_home, place
from enginebay.models._child import convert_in_child
from enginebay.models._convert_version import CONVERTER_VERSION

Replace = Literal["never", "changed", "always"]
DTYPES = ("bfloat16", "float16", "float32")
_QUANTIZATION = re.compile(r"[-._](i?q\d\w*|f16|f32|bf16|fp16|fp32|mxfp4|tq\d\w*)$", re.IGNORECASE)
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]+")


def model_name(path: Path) -> str:
    """The model's name by its file's: without ``.gguf`` and the quantization, unfit characters as ``-``."""
    stem = _QUANTIZATION.sub("", path.name.removesuffix(".gguf"))
    return _UNFIT.sub("-", stem).lstrip("-._+")[:100] or "model"


def import_gguf(
    path: Path, *, name: str | None = None, dtype: str = "bfloat16", progress: bool = False, force: bool = False
) -> Path:
    """Convert a GGUF file into the cache under ``name`` (unset: by the file's name) and return its folder.

    Importing the same file again returns at once. Raises ``ModelError`` when the file is damaged or unsupported, and
    when the name is taken by another model and ``force`` is not set. ``progress`` draws a bar on stderr.
    """
    name = check_name(name or model_name(path))
    replace: Replace = "always" if force else "never"
    return import_into(name, path, _fingerprint(path), dtype=dtype, progress=progress, replace=replace)


def converted(path: Path, *, progress: bool = False) -> Path:
    """The folder of a GGUF file that was named as a model's path; converted once, and again when the file changes."""
    source = _fingerprint(path) | {"automatic": True}
    digest = hashlib.sha256(repr((source["path"], source["size"], source["mtime_ns"])).encode()).hexdigest()[:12]
    name = f"{model_name(path)}-{digest}"
    folder = import_into(name, path, source, dtype="bfloat16", progress=progress, replace="changed")
    _remove_outdated(name, source)
    return folder


def _remove_outdated(name: str, source: Mapping[str, Any]) -> None:
    """Remove what earlier contents of the same file became: a file that changes often must not fill the disk."""
    for old, record in imported().items():
        there = record.get("source", {})
        if old != name and there.get("automatic") and there.get("path") == source["path"]:
            with place(old) as where:
                if where.final.exists():
                    where.final.rename(where.partial / "outdated")


def import_into(
    name: str, path: Path, source: Mapping[str, Any], *, dtype: str, progress: bool, replace: Replace
) -> Path:
    """Convert ``path`` under ``name``, remembering ``source``.

    ``replace`` says what may give way to it: nothing ("never"), a model from another source or dtype ("changed"), or
    also the very same one ("always"); unless it is "always", one that is there already is returned as it is.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype '{dtype}' is not known; known: {', '.join(DTYPES)}")
    record = {"source": dict(source), "dtype": dtype, "converter": CONVERTER_VERSION}
    if replace != "always" and _is_there(name, record):
        return models_home() / name
    with place(name) as where:
        if replace != "always" and _is_there(name, record):  # another process made it while this one waited
            return where.final
        if where.final.exists() and replace == "never":
            raise ModelError(_taken(name, record))
        return where.publish(_build(path, where, dtype, progress), record)


def _is_there(name: str, record: Mapping[str, Any]) -> bool:
    return imported().get(name) == record


def _taken(name: str, record: Mapping[str, Any]) -> str:
    there = imported().get(name)
    if there is None:
        return f"{models_home() / name} exists and was not imported by this program; choose another --name"
    if there.get("source") == record["source"]:
        what = f"in {there.get('dtype')}"
    else:
        what = f"from {describe_source(there.get('source'))}"
    return f"a model named '{name}' is imported already, {what}; replace it with --force, or choose another --name"


def describe_source(source: Any) -> str:
    """A source for people: the package or the file."""
    if not isinstance(source, dict):
        return "an unknown source"
    return str(source.get("package") or source.get("path") or "an unknown source")


def _fingerprint(path: Path) -> dict[str, Any]:
    try:
        resolved = path.resolve(strict=True)
        stat = resolved.stat()
    except OSError as error:
        raise ModelError(one_line(f"cannot read {path}: {error.strerror}")) from error
    except (RuntimeError, ValueError) as error:  # links in a circle, a zero byte
        raise ModelError(one_line(f"cannot read {path}: {error}")) from error
    if not resolved.is_file():
        raise ModelError(f"{path} is no file")
    return {"path": str(resolved), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _build(path: Path, where: Place, dtype: str, progress: bool) -> Path:
    built = where.partial / "model"
    built.mkdir()
    with progress_bar(f"converting {path.name}", progress) as advance:
        convert_in_child(path.absolute(), built, dtype, advance, lock_fd=where.lock_fd)
    return built


@contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr that a callback (done, total) moves; nothing at all when not ``shown``."""
    if not shown:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

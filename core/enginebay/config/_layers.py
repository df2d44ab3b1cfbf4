"""What may stand above the config file: the environment and ``--set``, as nested tables with their origins."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.config._bounds import MAX_DEPTH, bad_value

PREFIX = "ENGINEBAY__"
_PATHS = (("model", "path"), ("model", "tokenizer"), ("telemetry", "file"))
_SHOWN = 200
# Keys of which the later layer replaces the earlier one's, since they say the same thing.
_ONE_OF = {"cache": ("memory_utilization", "memory_bytes", "num_blocks")}


@dataclass
class Layers:
    """The merged config so far: its data, where each value came from, how it was written, and what was wrong."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def put_file(self, table: Mapping[str, Any], origin: str, folder: Path) -> None:
        """The file's table, the lowest layer; relative paths in it are relative to its folder."""
        self.data = {k: dict(v) if isinstance(v, dict) else v for k, v in table.items()}
        for path, _ in _leaves(table):
            self.origins[".".join(path)] = origin
        self._resolve(_PATHS, folder)

    def put_environment(self, environ: Mapping[str, str]) -> None:
        """``ENGINEBAY__SECTION__KEY=value``, in the order of the names."""
        for name in sorted(environ):
            if name.startswith(PREFIX):
                path = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
                self._put(path, environ[name], name, f"{PREFIX}SECTION__KEY")

    def put_sets(self, sets: Sequence[str]) -> None:
        """``section.key=value`` of the command line, in the order given."""
        for item in sets:
            key, equals, text = item.partition("=")
            if equals:
                self._put(_split(key.strip()), text, "--set", "--set section.key=value")
            else:
                self.faults.append(f"--set {item}: there is no value; write --set section.key=value")

    def as_written(self, path: tuple[str, ...]) -> bool:
        """Take the value of ``path`` as the text that was written, if it came from the environment or ``--set``."""
        key = ".".join(path)
        if key not in self.written:
            return False
        table = self.data
        for part in path[:-1]:
            table = table[part]
        table[path[-1]] = self.written.pop(key)
        self._resolve(tuple(p for p in _PATHS if p == path), Path.cwd())
        return True

    def _put(self, path: tuple[str, ...], text: str, origin: str, form: str) -> None:
        shown = origin if origin != "--set" else f"--set {'.'.join(path)}"
        if len(path) < 2 or not all(path):
            self.faults.append(f"{shown}: names no section and key; write {form}")
            return
        value = _value(text)
        bad = bad_value([*path, value]) or (
            f"the key has {len(path)} parts; at most {MAX_DEPTH}" if len(path) > MAX_DEPTH else None
        )
        if bad is not None:
            self.faults.append(f"{shown[:_SHOWN]}: {bad}")
            return
        table = self.data
        for i, part in enumerate(path[:-1]):
            below = table.setdefault(part, {})
            if not isinstance(below, dict):
                self.faults.append(f"{shown}: {'.'.join(path[: i + 1])} is a value, and no table")
                return
            table[part] = dict(below)  # the file's own tables are not written to
            table = table[part]
        if path[1] in _ONE_OF.get(path[0], ()):
            self._drop_lower(table, path[0], origin)
        key = ".".join(path)
        for old in [k for k in self.origins if k.startswith(f"{key}.")]:
            del self.origins[old]
        table[path[-1]] = value
        self.origins[key], self.written[key] = origin, text
        self._resolve(tuple(p for p in _PATHS if p == path), Path.cwd())

    def _drop_lower(self, table: dict[str, Any], section: str, origin: str) -> None:
        for rival in _ONE_OF[section]:
            other = self.origins.get(f"{section}.{rival}")
            if other is not None and _layer(other) != _layer(origin):
                del table[rival], self.origins[f"{section}.{rival}"]

    def _resolve(self, paths: Sequence[tuple[str, str]], folder: Path) -> None:
        for section, key in paths:
            table = self.data.get(section)
            value = table.get(key) if isinstance(table, dict) else None
            if not isinstance(value, str) or not value:
                continue
            path = folder / os.path.expanduser(value)
            # a bare name that is no file here is the name of an imported model
            if os.sep in value or os.path.exists(path) or (section, key) != ("model", "path"):
                self.data[section][key] = str(path)


def _layer(origin: str) -> str:
    return PREFIX if origin.startswith(PREFIX) else "--set" if origin == "--set" else "file"


def _leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _split(key: str) -> tuple[str, ...]:
    """Dotted, with TOML's quotes around a part that has a dot of its own."""
    if '"' not in key:
        return tuple(key.split("."))
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return (key,)
    path: list[str] = []
    while isinstance(table, dict):
        part, table = next(iter(table.items()))
        path.append(part)
    return tuple(path)


def _value(text: str) -> Any:
    """A TOML literal, or, when it is none, the text itself."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML, or an integer of more digits than Python reads
        return text
    return table["value"] if len(table) == 1 else text

"""Reading a config: a TOML file, the environment over it, ``--set`` over both; validated as a whole."""

from __future__ import annotations

import os
import re
import select
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from enginebay.config._beneath import look_beneath
from enginebay.config._bounds import MAX_CONFIG_BYTES, bad_value
from enginebay.config._explain import fault_path
from enginebay.config._faults import faults_of, refuse
from enginebay.config._layers import Layers
from enginebay.config._models import EngineConfig
from enginebay.errors import ConfigError, one_line

_IN_CODE = "the config given in code"
_PATIENCE = 5_000
_TICK = 50
"""Milliseconds that a pipe's writer may take to come, and between two looks."""


@dataclass(frozen=True)
class Resolved:
    """A config, and for each key that was set ("cache.block_size") where: the file, the variable, or "--set".

    ``file`` is the config file as it was named.
    """

    config: EngineConfig
    origins: dict[str, str] = field(default_factory=dict)
    file: str = "the config"

    def origin(self, key: str) -> str:
        """Where a key was set; "default" when it was not."""
        return self.origins.get(key, "default")

    def source(self, section: str) -> str:
        """All origins of a section, as one phrase; the file when nothing in it was set."""
        found = dict.fromkeys(o for k, o in self.origins.items() if k == section or k.startswith(f"{section}."))
        return " and ".join(found) or self.file


Also = Callable[[Resolved, Collection[str]], Sequence[str]]
"""Says what is wrong with a config beside its form, each as a line; the keys are those that were left out of it."""


def load(
    path: Path | Mapping[str, Any] | None,
    *,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    also: Also = lambda rest, left_out: (),
) -> Resolved:
    """Read and validate a config; nothing is read that is not named.

    ``path`` is the TOML file, the tables themselves, or None for defaults. ``environ`` (None: the process's) may set
    ``ENGINEBAY__SECTION__KEY``, ``sets`` are ``section.key=value``; values are TOML literals, or else plain text.
    Relative paths in the file are relative to its folder, those of the other two to the working directory.
    Raises ``ConfigError`` that tells every fault at once. ``also``: asked, when there is one, what else is wrong with
    what is left of the config without the keys that are at fault.
    """
    file = "the config" if path is None else str(path)
    layers = Layers()
    if isinstance(path, Mapping):
        layers.put_file(_checked(path, _IN_CODE), _IN_CODE, Path.cwd())
        path = None
    elif path is not None:
        layers.put_file(_checked(_read(path), file), file, Path(os.path.abspath(path)).parent)
    layers.put_environment(os.environ if environ is None else environ)
    layers.put_sets(sets)
    try:
        config = _validate(layers)
    except ValidationError as error:
        faults = [*layers.faults, *faults_of(error.errors(include_url=False), layers.data, layers.origins, file)]
        beneath = look_beneath(error, layers.data, layers.origins, file)
        faults += beneath.faults
        if beneath.config is not None:
            faults += also(Resolved(config=beneath.config, origins=layers.origins, file=file), beneath.left_out)
        refuse(faults)
        raise  # a validation error without a fault cannot be
    resolved = Resolved(config=config, origins=layers.origins, file=file)
    if layers.faults:
        refuse([*layers.faults, *also(resolved, ())])
    return resolved


def _checked(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if (bad := bad_value(table)) is not None:
        raise ConfigError(f"{where}: {bad}")
    return table


def _validate(layers: Layers) -> EngineConfig:
    try:
        return EngineConfig.model_validate(layers.data)
    except ValidationError as error:
        # "--set model.path=2024" reads as a number, and is a name all the same
        texts = [d for d in error.errors(include_url=False) if d["type"] in ("string_type", "path_type")]
        again = [layers.as_written(fault_path(detail, layers.data)) for detail in texts]  # all of them, not the first
        if not any(again):
            raise
    return EngineConfig.model_validate(layers.data)


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = _read_bytes(path)
        if len(raw) > MAX_CONFIG_BYTES:
            raise ConfigError(f"config file {path} has more than {MAX_CONFIG_BYTES >> 10} KiB")
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no config file {path}: name one that exists, or none to run with the defaults "
            "(a model is named by model.path)"
        ) from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text (byte 0x{error.object[error.start]:02x})") from None
    try:
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        said = re.fullmatch(r"(?s)(.*) \(at (?:(line \d+, column \d+)|(end of document))\)", str(error))
        if said is None:
            raise ConfigError(one_line(f"{path}: {error}")) from None
        where = said[2] or f"line {text.count(chr(10)) + 1}, at the end"
        raise ConfigError(one_line(f"{path}, {where}: not TOML: {said[1]}")) from None
    except RecursionError:
        raise ConfigError(f"{path}: tables or lists are nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python reads
        raise ConfigError(f"{path}: {error}") from None
    return table


def _read_bytes(path: Path) -> bytes:
    """At most one byte more than is taken."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # to open a pipe waits for its writer
    with os.fdopen(fd, "rb") as stream:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return _read_pipe(fd, path)
        os.set_blocking(fd, True)
        return stream.read(MAX_CONFIG_BYTES + 1)


def _read_pipe(fd: int, path: Path) -> bytes:
    """All that its writer writes, which may take its time; raises ``ConfigError`` when none comes."""
    raw, waited = b"", 0
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while len(raw) <= MAX_CONFIG_BYTES:
        left = any(event == select.POLLHUP for _, event in poll.poll(_TICK))  # it came, and there is no more to read
        try:
            piece = os.read(fd, MAX_CONFIG_BYTES + 1 - len(raw))
        except BlockingIOError:  # it is there
            continue
        raw += piece
        if not piece and (raw or left):
            break
        if not piece:
            waited += _TICK
        if waited > _PATIENCE:
            raise ConfigError(
                f"config file {path} is a pipe, and nobody has written to it within {_PATIENCE // 1000} s"
            )
    return raw

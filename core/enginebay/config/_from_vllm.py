"""A vLLM command line as an ``engine.toml``: each key with the flag that it comes from, the rest with the reason."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

from pydantic import ValidationError

from enginebay.config._faults import faults_of
from enginebay.config._load import load
from enginebay.config._models import EngineConfig
from enginebay.config._vllm_flags import FLAGS, SHORT, Flag
from enginebay.config._vllm_values import NotHere, is_text, toml
from enginebay.errors import ConfigError, did_you_mean, one_line

__all__ = ["Translation", "from_vllm"]

_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main", "vllm")
_MODEL: Final = "MODEL"
_SIZES: Final = ("num-gpu-blocks-override", "kv-cache-memory-bytes", "gpu-memory-utilization")
"""They say the size of the cache; an earlier one overrides a later one, with vLLM and here."""


@dataclass(frozen=True)
class Translation:
    """``toml`` is a valid config file. ``left_out``: flags that have no key here; ``missing``: "executor 'mp'"."""

    toml: str
    left_out: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass
class _Reading:
    """What was read so far. ``given`` maps a flag's name to the text of its value and how it was written."""

    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def from_vllm(argv: Sequence[str], *, installed: Mapping[str, Collection[str]] | None = None) -> Translation:
    """Translate ``vllm serve …`` (the words of its command line, with or without the first ones).

    ``installed`` has the names of the installed plugins by section ("executor", "scheduler"); a name that is not
    among them is told. The last of a repeated flag counts. Raises ``ConfigError`` with everything that is unknown or
    wrong, each by its flag.
    """
    if not is_text("".join(argv)):
        raise ConfigError("the command line holds bytes that are no UTF-8 text")
    reading = _Reading()
    _read(deque(_without_command(_words(argv), reading)), reading)
    keys, origins, remarks = _keys(reading)
    missing = _missing(keys, origins, remarks, installed or {})
    _check(reading, keys, origins)
    text = _file(keys, origins, remarks, reading.reasons)
    load(tomllib.loads(text), environ={})  # what is printed is what the engine will read
    return Translation(toml=text, left_out=tuple(reading.reasons), missing=missing)


def _words(argv: Sequence[str]) -> list[str]:
    """The words; a whole command line that was pasted within quotes is taken apart."""
    if len(argv) == 1 and any(c.isspace() for c in argv[0]):
        try:
            return shlex.split(argv[0].replace("\\\n", " "))
        except ValueError as error:
            raise ConfigError(f"the command line cannot be taken apart: {str(error).lower()}") from None
    return list(argv)


def _without_command(words: list[str], reading: _Reading) -> list[str]:
    """What stands behind ``vllm serve`` or ``python -m …api_server``, variables in front of it noted."""
    while words and (match := re.match(r"([A-Za-z_][A-Za-z0-9_]*)=", words[0])):
        reading.reasons[match[1]] = "a variable of the environment is yours to set; VLLM_… mean nothing here"
        words = words[1:]
    name = PurePath(words[0]).name if words else ""
    if re.fullmatch(r"python[\d.]*", name):
        if len(words) < 3 or words[1] != "-m" or words[2] not in _MODULES:
            raise ConfigError(f"from-vllm knows `vllm serve` and `python -m {_MODULES[0]}`, and no other program")
        words = words[3:] if words[2] == _MODULES[0] else ["vllm", *words[3:]]
        name = PurePath(words[0]).name if words else ""
    if name != "vllm":
        return words[1:] if name == "serve" else words
    if words[1:2] != ["serve"]:
        raise ConfigError(one_line(f"from-vllm translates `vllm serve`, and not `{' '.join(['vllm', *words[1:2]])}`"))
    return words[2:]


def _read(words: deque[str], reading: _Reading) -> None:
    positional: list[str] = []
    while words:
        word = words.popleft()
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        written, equals, value = word.partition("=")
        flag, negated = _flag(written)
        written = written.partition(".")[0]  # what stands behind the dot is no name of a flag
        if flag is None and (level := re.fullmatch(r"-O(\d)", word)):
            flag, equals, value = FLAGS[SHORT["O"]], "=", level[1]
        if flag is None:
            reading.faults.append(_unknown(written))
            if not equals and words and _is_value(words[0]):
                words.popleft()  # of the flag, as a rule, and no second fault
            continue
        text = "false" if negated else value if equals else _next(flag, words)
        if text is None or (negated and equals):
            reading.faults.append(f"{written}: {'takes no value' if negated else 'needs a value'}")
        elif flag.takes == "values" and not equals:
            while words and _is_value(words[0]):
                words.popleft()
                if flag.key:
                    reading.reasons[f"{written} beyond the first"] = "a model has one name here"
            reading.given[flag.name] = (text, written)
        else:
            reading.given[flag.name] = (text, written)
    if len(positional) > 1:
        reading.faults.append(f"{positional[1]!r} stands alone: {positional[0]!r} is the model already")
    if positional:
        reading.given["model"] = (positional[0], _MODEL)
    if "model" not in reading.given:
        reading.reasons[_MODEL] = "none is named, and the imported SmolLM2 is what runs then"


def _flag(written: str) -> tuple[Flag | None, bool]:
    """The flag that was meant, and whether it is its negation. A dotted rest (``--x.y``) sets a part of ``--x``."""
    name = written.lstrip("-").partition(".")[0]
    if not written.startswith("--"):
        return FLAGS.get(SHORT.get(name, "")), False
    name = name.replace("_", "-")
    flag = FLAGS.get(name.removeprefix("no-"))
    if flag is None or name == flag.name:
        return flag, False
    return (flag, True) if flag.takes == "switch" else (None, False)


def _next(flag: Flag, words: deque[str]) -> str | None:
    """The value that stands behind the flag, taken off; a switch may have one, the others must."""
    if flag.takes == "switch":
        return words.popleft() if words and words[0].lower() in ("true", "false") else "true"
    return words.popleft() if words and _is_value(words[0]) else None


def _is_value(word: str) -> bool:
    return not word.startswith("-") or re.fullmatch(r"-\d.*", word) is not None


def _unknown(written: str) -> str:
    if written.replace("_", "-") == "--config":
        return "--config: vLLM's own config file is not read: write what it says as flags"
    close = did_you_mean(written.replace("_", "-"), [f"--{name}" for name in FLAGS])
    return f"{written}: no flag of `vllm serve` that enginebay knows.{close or ' Leave it out.'}"


def _keys(reading: _Reading) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Our keys with their values, with the flags that they come from, and with what is to be said of them."""
    keys: dict[str, Any] = {}
    origins: dict[str, str] = {}
    remarks: dict[str, str] = {}
    for name, (text, written) in reading.given.items():
        flag = FLAGS[name]
        if not flag.key:
            reading.reasons[written] = flag.reason
            continue
        try:
            keys[flag.key] = flag.read(text)
        except NotHere as why:
            reading.reasons[written] = str(why)
            continue
        except ValueError as error:
            reading.faults.append(f"{written}: {error}, and is {text[:60]!r}")
            continue
        origins[flag.key], remarks[flag.key] = written, flag.remark
    sizes = [FLAGS[name].key for name in _SIZES if FLAGS[name].key in keys]
    for key in sizes[1:]:
        reading.reasons[origins.pop(key)] = f"{origins[sizes[0]]} says the size of the cache"
        del keys[key]
    _settle(keys, origins, remarks)
    return keys, origins, remarks


def _settle(keys: dict[str, Any], origins: dict[str, str], remarks: dict[str, str]) -> None:
    """What vLLM would choose where enginebay has another default, and what a model's name is."""
    path = keys.get("model.path")
    if path is not None and not Path(path).is_absolute() and ("/" in path or ":" in path):
        remarks["model.path"] = "not a folder here; nothing is fetched from a hub: put the folder's path"
    tensor, pipeline = (keys.get(f"parallel.{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    if tensor * pipeline > 1 and "executor.use" not in keys:
        keys["executor.use"], origins["executor.use"] = "mp", "vLLM's choice for several ranks on one host"
        remarks["executor.use"] = ""


def _missing(
    keys: Mapping[str, Any],
    origins: Mapping[str, str],
    remarks: dict[str, str],
    installed: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    found = []
    for section, names in installed.items():
        name = keys.get(f"{section}.use")
        if name is not None and name not in names:
            found.append(f"{section} '{name}'")
            remarks[f"{section}.use"] = f"not installed; installed: {', '.join(sorted(names)) or 'none'}"
    return tuple(found)


def _check(reading: _Reading, keys: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Raise with all that is wrong: flags first, then values that our own config does not take."""
    faults = [one_line(fault) for fault in reading.faults]
    data = {section: dict(pairs) for section, pairs in _sections(keys)}
    try:
        EngineConfig.model_validate(data)
    except ValidationError as error:
        faults += faults_of(error.errors(include_url=False), data, origins, "the command line")
    if len(faults) == 1:
        raise ConfigError(faults[0])
    if faults:
        raise ConfigError("\n  ".join([f"the command line has {len(faults)} faults:", *faults]))


def _sections(keys: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The sections that have keys, in our order, each with its keys in our order."""
    every = [(s, [(k, keys[f"{s}.{k}"]) for k in _names(s) if f"{s}.{k}" in keys]) for s in EngineConfig.model_fields]
    return [(section, pairs) for section, pairs in every if pairs]


def _names(section: str) -> Iterable[str]:
    annotation: Any = EngineConfig.model_fields[section].annotation
    return list(getattr(annotation, "model_fields", ()))


def _file(
    keys: Mapping[str, Any], origins: Mapping[str, str], remarks: Mapping[str, str], reasons: Mapping[str, str]
) -> str:
    lines = ["# What a vLLM command line comes to. Look at it with:  enginebay check --config engine.toml"]
    for section, pairs in _sections(keys):
        written = [f"{key} = {toml(value)}" for key, value in pairs]
        width = max(map(len, written))
        lines += ["", f"[{section}]"]
        for (key, _), text in zip(pairs, written, strict=True):
            said = "; ".join(filter(None, [origins[f"{section}.{key}"], remarks[f"{section}.{key}"]]))
            lines.append(f"{text.ljust(width)}  # {said}")
    if reasons:
        lines += ["", "# Left out:"]
        for reason in dict.fromkeys(reasons.values()):
            names = ", ".join(name for name, why in reasons.items() if why == reason)
            lines.append(f"# {names}: {reason}")
    return "\n".join(lines) + "\n"

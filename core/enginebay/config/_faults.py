"""All that is wrong with a config, in one report: each fault with its origin, section, key and the known keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from enginebay.config._bounds import MAX_FAULTS
from enginebay.config._explain import explain_fault, fault_path, join_faults
from enginebay.config._models import EngineConfig
from enginebay.config._vllm_flags import FOREIGN_KEYS, FOREIGN_REASONS
from enginebay.errors import ConfigError, did_you_mean, one_line

_LATER = frozenset({"structured"})


def known_keys(section: str | None) -> list[str]:
    """The keys of a section (``use`` first, ``options`` last), or the sections of the file."""
    if section is None:
        return list(EngineConfig.model_fields)
    annotation = EngineConfig.model_fields[section].annotation
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return []
    return sorted(annotation.model_fields, key=lambda name: (name == "options", name != "use"))


def faults_of(
    faults: Sequence[ErrorDetails], data: Mapping[str, Any], origins: Mapping[str, str], file: str
) -> list[str]:
    """Each fault as one line, in the order of the sections; several of one key are joined."""
    told: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for detail in faults:
        told.setdefault(fault_path(detail, data), []).append(detail)
    lines: list[str] = []
    for path, details in told.items():
        if len(lines) >= MAX_FAULTS:  # only counted
            lines.append("")
            continue
        texts = [_unknown(path, data) if d["type"] == "extra_forbidden" else explain_fault(d) for d in details]
        where = f"[{path[0]}]" + (f" {'.'.join(path[1:])}" if len(path) > 1 else "") if path else "the config"
        if len(path) == 1 and not isinstance(data[path[0]], Mapping) and path[0] not in EngineConfig.model_fields:
            where = path[0]
        lines.append(f"{_origin(path, data, origins, file)}: {where}: {join_faults(texts)}")
    return lines


def refuse(faults: Sequence[str]) -> None:
    """Raise one ``ConfigError`` with all faults, if there are any, each on a line of its own."""
    if len(faults) == 1:
        raise ConfigError(one_line(faults[0]))
    if faults:
        lines = [f"the config has {len(faults)} faults:", *map(one_line, faults[:MAX_FAULTS])]
        if len(faults) > MAX_FAULTS:
            lines.append(f"and {len(faults) - MAX_FAULTS} more")
        raise ConfigError("\n  ".join(lines))


def _unknown(path: tuple[str, ...], data: Mapping[str, Any]) -> str:
    if len(path) == 1:
        name = path[0]
        if isinstance(data[name], Mapping):
            later = " It is not in this version." if name in _LATER else did_you_mean(name, known_keys(None))
            return f"unknown section.{later} Known sections: {', '.join(known_keys(None))}"
        return (
            f"unknown key outside of any section.{_elsewhere(name, None)} Known sections: {', '.join(known_keys(None))}"
        )
    section, name = path[0], path[-1]
    hint = did_you_mean(name, known_keys(section)) or _elsewhere(name, section)
    return f"unknown key.{hint} Known keys: {', '.join(known_keys(section))}"


def _elsewhere(name: str, section: str | None) -> str:
    """A key of the same name in another section, or ours for a key of another engine."""
    name = name.replace("-", "_")
    homes = [s for s in known_keys(None) if s != section and name in known_keys(s) and name not in ("use", "options")]
    if len(homes) == 1:
        return f" Did you mean [{homes[0]}] {name}?"
    target = FOREIGN_KEYS.get(name)
    if target is None and name in FOREIGN_REASONS:
        return f" vLLM's flag of that name has no key here: {FOREIGN_REASONS[name]}."
    if target is None:
        every = [(s, k) for s in known_keys(None) for k in known_keys(s)]
        close = did_you_mean(name, [k for _, k in every])
        match = [(s, k) for s, k in every if close == f" Did you mean '{k}'?"]
        return f" Did you mean [{match[0][0]}] {match[0][1]}?" if match else ""
    home, _, key = target.partition(".")
    return f" Did you mean [{home}] {key}?"


def _origin(path: tuple[str, ...], data: Mapping[str, Any], origins: Mapping[str, str], file: str) -> str:
    """Where a value came from; a fault of a whole section has the origins of all that stands in it."""
    key = ".".join(path)
    if key in origins:
        return origins[key]
    below = dict.fromkeys(o for k, o in origins.items() if not key or k.startswith(f"{key}."))
    above = next((o for k, o in origins.items() if key.startswith(f"{k}.")), file)
    return " and ".join(below) or above

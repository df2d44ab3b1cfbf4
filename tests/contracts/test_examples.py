"""The example config says what is true: it loads, it holds every key, and each value it shows is the default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from enginebay.config import EngineConfig, load
from enginebay.interfaces import Kind
from enginebay.plugins import PluginHost
from support.repository import ROOT

FILE = ROOT / "examples" / "engine.toml"


def test_it_loads_and_equals_the_defaults() -> None:
    assert load(FILE, environ={}).config == EngineConfig()


def test_it_loads_with_every_comment_opened() -> None:
    """Keys that are commented out exist too, with values of the right type; of [cache] only one size may be given."""
    text = re.sub(r"^# (\w+ = )", r"\1", FILE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^(memory_bytes|num_blocks) = .*\n", "", text, flags=re.MULTILINE)
    EngineConfig.model_validate(tomllib.loads(text))


def test_it_holds_every_key() -> None:
    shown = {}
    section = ""
    for line in FILE.read_text().splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            section = header[1]
            shown[section] = set()
        elif key := re.match(r"(?:# )?(\w+) = ", line):
            shown[section].add(key[1])
    expected = {}
    for name, field in EngineConfig.model_fields.items():
        annotation: Any = field.annotation
        expected[name] = set()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            expected[name] = set(annotation.model_fields) - {"options"}
            if "options" in annotation.model_fields:
                expected[f"{name}.options"] = set()
    assert shown == expected


def _of_executors() -> list[Path]:
    return sorted(FILE.parent.glob("engine.*.toml"))


def test_every_executor_has_a_config() -> None:
    installed = {one.name for one in PluginHost().installed(Kind.EXECUTOR) if one.package == "enginebay"}
    assert {path.name.split(".")[1] for path in _of_executors()} == installed


@pytest.mark.parametrize("path", _of_executors(), ids=lambda path: path.name)
@pytest.mark.parametrize("opened", [False, True], ids=["as it is", "every comment opened"])
def test_a_config_of_an_executor_says_what_is_true(path: Path, opened: bool) -> None:
    """It names its executor, its options exist, and so do the keys that are commented out."""
    text = path.read_text()
    if opened:
        text = re.sub(r"^# (\[\w+(?:\.\w+)*\]|\w+ = )", r"\1", text, flags=re.MULTILINE)
    tables: dict[str, dict[str, Any]] = {}
    section = ""
    for line in text.splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            section = header[1]
        if section and not line.startswith("#"):
            tables.setdefault(section, {}).update(_values(line))
    config = EngineConfig.model_validate(_nested(tables))
    assert config.executor.use == path.name.split(".")[1]
    PluginHost().load_executor(config.executor.use, config.executor.options)


def _values(line: str) -> dict[str, Any]:
    return {} if line.startswith("[") else tomllib.loads(line)


def _nested(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of ``executor.options`` the table within a table; a section that is opened twice is one."""
    nested: dict[str, Any] = {}
    for name, values in tables.items():
        at = nested
        for part in name.split("."):
            at = at.setdefault(part, {})
        at.update(values)
    return nested

"""The example config says what is true: it loads, it holds every key, and each value it shows is the default."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pydantic import BaseModel

from enginebay.config import EngineConfig, load
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

"""Rules of evolution: messages and interfaces of API 1 grow only by fields with defaults and by optional methods.

``api_1.json`` is what version 1.0 demanded: the fields that have no default, and the methods that are abstract.
A violating change looks like: a new field without a default in a message, which breaks every author who builds one.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginebay import interfaces, messages
from enginebay.interfaces import API_VERSION
from support.repository import CORE, sources

SNAPSHOT = Path(__file__).parent / "api_1.json"


def _classes(module: Any) -> list[type[Any]]:
    return [thing for name in module.__all__ if inspect.isclass(thing := getattr(module, name))]


STRUCTS = [c for c in _classes(messages) if issubclass(c, msgspec.Struct)]
DATACLASSES = [c for c in _classes(interfaces) if dataclasses.is_dataclass(c)]


def demands() -> dict[str, dict[str, list[str]]]:
    """What this version demands: required fields and abstract methods, by class."""
    required: dict[str, list[str]] = {}
    for struct in STRUCTS:
        fields = msgspec.structs.fields(struct)
        required[struct.__name__] = sorted(f.name for f in fields if f.required)
    for each in DATACLASSES:
        required[each.__name__] = sorted(
            f.name
            for f in dataclasses.fields(each)
            if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        )
    abstract = {
        c.__name__: sorted(getattr(c, "__abstractmethods__", ())) for c in _classes(interfaces) if inspect.isabstract(c)
    }
    return {"required_fields": required, "abstract_methods": abstract}


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda c: c.__name__)
def test_messages_are_frozen_and_keyword_only(struct: type[msgspec.Struct]) -> None:
    config = struct.__struct_config__
    assert config.frozen
    with pytest.raises(TypeError, match="positional"):
        struct(None)


@pytest.mark.parametrize("each", DATACLASSES, ids=lambda c: c.__name__)
def test_interface_data_is_keyword_only(each: type[Any]) -> None:
    assert all(f.kw_only for f in dataclasses.fields(each))


def test_messages_hold_no_tensors() -> None:
    """They can be built and encoded where there is no torch."""
    code = "import enginebay.messages, enginebay.interfaces, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("what", ["required_fields", "abstract_methods"])
def test_nothing_more_is_demanded_than_in_1_0(what: str) -> None:
    assert API_VERSION[0] == 1, "a new major version: make a new snapshot"
    then, now = json.loads(SNAPSHOT.read_text())[what], demands()[what]
    assert set(then) <= set(now), "a public class is gone"
    added = {name: sorted(set(now[name]) - set(then[name])) for name in then if set(now[name]) - set(then[name])}
    assert added == {}, "give a new field a default, and a new method a body"


def test_author_methods_return_no_bare_tuples() -> None:
    returned = []
    for path, tree in sources(CORE / "interfaces"):
        for cls in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
            for method in (n for n in cls.body if isinstance(n, ast.FunctionDef)):
                text = ast.unparse(method.returns) if method.returns is not None else ""
                # a homogeneous tuple[X, ...] is a sequence, and cannot grow a member; a sort key may be any tuple
                if text.startswith("tuple[") and not text.endswith(", ...]"):
                    returned.append(f"{path}: {cls.name}.{method.name} -> {text}")
    assert returned == []


if __name__ == "__main__":  # python tests/contracts/test_evolution.py: a new snapshot, for a new major version only
    SNAPSHOT.write_text(json.dumps(demands(), indent=1) + "\n")

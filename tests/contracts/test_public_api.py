"""The public face: every package lists its names, they import, and what authors implement is documented."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import enginebay
from enginebay import hookspecs, interfaces

PACKAGES = sorted(
    ["enginebay", "enginebay.errors", "enginebay.runtime"]
    + [
        f"enginebay.{info.name}"
        for info in pkgutil.iter_modules(enginebay.__path__)
        if info.ispkg and info.name != "cli"  # its public face is the command line
    ]
)
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("enginebay_"))


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, functions, each alphabetically: as ruff sorts ``__all__``."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_and_true(name: str) -> None:
    package = import_module(name)
    listed = package.__all__
    assert list(listed) == sorted(set(listed), key=_order)
    for public in listed:
        assert getattr(package, public) is not None, public


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_say_what_they_are_for(name: str) -> None:
    doc = import_module(name).__doc__
    assert doc is not None
    assert len(doc.splitlines()[0]) > 20, doc


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match=r"^module 'enginebay' has no attribute 'Engine'$"):
        enginebay.Engine  # noqa: B018  # the access is the test
    assert dir(enginebay) == sorted(enginebay.__all__)


def _public_parts() -> list[tuple[str, object]]:
    parts: list[tuple[str, object]] = []
    for name in interfaces.__all__:
        thing = getattr(interfaces, name)
        if not inspect.isclass(thing):
            continue
        parts.append((name, thing))
        fields = {f.name for f in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
        for attribute, value in vars(thing).items():
            if attribute.startswith("_") or attribute in fields:
                continue
            told = isinstance(value, property) or f"``{attribute}``" in (thing.__doc__ or "")
            if getattr(thing, "_is_protocol", False) and told:
                continue  # a protocol's members are told in its own docstring
            if inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)):
                parts.append((f"{name}.{attribute}", value))
    return parts


def test_everything_that_authors_see_is_documented() -> None:
    parts = _public_parts()
    assert len(parts) > 50
    # a dataclass or enum without a docstring gets a generated one, which says nothing
    generated = re.compile(r"^\w+\(.*\)$", re.DOTALL)
    bare = [name for name, part in parts if not (part.__doc__ or "").strip() or generated.match(part.__doc__ or "")]
    assert bare == []


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_says_since_which_api(name: str) -> None:
    doc = getattr(hookspecs, name).__doc__
    assert doc is not None
    assert re.search(r"\bAPI \d+\.\d+\.$", doc.strip()), doc


def test_there_are_hooks() -> None:
    assert len(HOOKS) >= 12

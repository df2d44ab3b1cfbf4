"""What is installed: entry points read from package metadata; no plugin is imported here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from importlib import metadata
from typing import cast

from enginebay.errors import PluginClash, PluginNotFound, did_you_mean
from enginebay.interfaces import Kind

_GROUPS = {kind.group: kind for kind in Kind}

# What people type who come from elsewhere: only ever a suggestion, and only when its target is installed.
_FOREIGN = {
    "multiproc": "mp",
    "multiprocess": "mp",
    "multiprocessing": "mp",
    "uniproc": "uni",
    "single": "uni",
    "ray_distributed": "ray",
    "torchrun": "external_launcher",
    "fifo": "fcfs",
    "default": "fcfs",
    "first_come_first_served": "fcfs",
    "eager": "v1",
    "transformers": "v1",
}


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An entry point of an installed package, from its metadata; ``module`` is where its hooks stand."""

    kind: Kind
    name: str
    package: str
    version: str
    module: str

    @property
    def origin(self) -> str:
        """The package with its version: "enginebay 0.1.0"."""
        return f"{self.package} {self.version}"


def find(entry_points: Iterable[metadata.EntryPoint] | None = None) -> tuple[Installed, ...]:
    """All plugins of the installed packages, ordered by kind, name and package.

    One package counts once: when it is found in two versions (an editable install before a stale copy), the one
    that comes first on ``sys.path`` is it, because that one is imported.
    """
    found: dict[tuple[Kind, str, str], Installed] = {}
    for entry in _scan() if entry_points is None else entry_points:
        kind = _GROUPS.get(entry.group)
        if kind is None:
            continue
        package, version = _package(entry.dist)
        one = Installed(kind=kind, name=entry.name, package=package, version=version, module=entry.value)
        found.setdefault((kind, entry.name, _normal(package)), one)
    order = list(Kind)
    return tuple(sorted(found.values(), key=lambda i: (order.index(i.kind), i.name, i.package)))


def pick(installed: Sequence[Installed], kind: Kind, name: str) -> Installed:
    """The one plugin of that kind and name; ``PluginNotFound`` or ``PluginClash`` otherwise."""
    same = [i for i in installed if i.kind is kind and i.name == name]
    if len(same) == 1:
        return same[0]
    if same:
        offers = " and ".join(f"{i.origin} (module {i.module})" for i in same)
        raise PluginClash(
            f"{kind.noun} '{name}' is offered by {len(same)} installed packages, and none of them is used: {offers}. "
            f"Uninstall all but one."
        )
    raise PluginNotFound(_not_found(installed, kind, name))


def clashes(installed: Sequence[Installed]) -> tuple[tuple[Installed, ...], ...]:
    """The groups of plugins that cannot be told apart by kind and name."""
    groups: dict[tuple[Kind, str], list[Installed]] = {}
    for one in installed:
        groups.setdefault((one.kind, one.name), []).append(one)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _not_found(installed: Sequence[Installed], kind: Kind, name: str) -> str:
    here = [i for i in installed if i.kind is kind]
    names = {i.name for i in here}
    others = sorted({i.kind.noun for i in installed if i.name == name})
    text = f"No {kind.noun} named '{name}' is installed."
    for noun in others:
        text += f" '{name}' is {'an' if noun[0] in 'aeiou' else 'a'} {noun}."
    foreign = _FOREIGN.get(name.lower().replace("-", "_"))
    text += f" Did you mean '{foreign}'?" if foreign in names else did_you_mean(name, sorted(names))
    listed = ", ".join(f"{i.name} ({i.origin})" for i in here)
    return f"{text} Installed: {listed or f'none; a package offers one in the entry-point group {kind.group}'}"


def _scan() -> Iterator[metadata.EntryPoint]:
    """Entry points of every distribution on ``sys.path``; one with damaged metadata hides only itself."""
    names: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        # the text first: parsing the metadata of every installed package would take most of the time of a listing
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, UnicodeDecodeError):  # somebody else's file; ours would be plain text
            continue
        if "enginebay." in text:
            names.setdefault(_normal(_package(distribution)[0]), distribution)
    for name, distribution in names.items():
        try:
            winner = metadata.distribution(name)  # the first on sys.path, also when it offers nothing any more
        except (metadata.PackageNotFoundError, ValueError):
            winner = distribution
        try:
            yield from winner.entry_points
        except Exception as error:  # the parser of the standard library raises what it likes on a damaged file
            logging.getLogger("enginebay").warning("the entry points of package %s cannot be read: %s", name, error)


def _package(distribution: metadata.Distribution | None) -> tuple[str, str]:
    if distribution is None:
        return "unknown", "?"
    about = cast("Message", distribution.metadata)  # asking it for a header that is missing is deprecated
    return str(about.get("Name", "unknown")), str(about.get("Version", "?"))


def _normal(package: str) -> str:
    return package.lower().replace("_", "-").replace(".", "-")

"""Installed packages for tests: real modules and ``*.dist-info`` folders on ``sys.path``, read by the real code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from enginebay.plugins import PluginHost

HEAD = """
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import *
from enginebay.messages import *

def make(context):
    raise NotImplementedError("never made in a test of descriptors")
"""
"""What a plugin module begins with; ``make`` is a factory that nobody calls."""


class FakeSite:
    """A folder on ``sys.path`` into which packages are installed, and forgotten after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: set[str] = set()

    def host(self, **keywords: Any) -> PluginHost:
        """A host to which nothing but this site is installed."""
        found = [e for d in metadata.distributions(path=[str(self.folder)]) for e in d.entry_points]
        return PluginHost(entry_points=found, **keywords)

    def add(
        self,
        package: str,
        version: str = "1.0",
        *,
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> None:
        """Install a package: ``entry_points`` as {"executors": {"mp": "module"}}, ``modules`` as {name: source}."""
        info = self.folder / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = [
            line
            for group, names in (entry_points or {}).items()
            for line in (f"[enginebay.{group}]", *(f"{name} = {value}" for name, value in names.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for name, source in (modules or {}).items():
            (self.folder / f"{name}.py").write_text(dedent(source))
            self.modules.add(name)

    def plugin(self, kind: str, name: str, body: str, *, package: str | None = None, version: str = "1.0") -> str:
        """Install a package with one plugin of ``kind`` ("executors"), whose module is ``body``; its module's name."""
        package = package or f"{name}-pkg"
        module = f"{package.replace('-', '_')}_plugin"
        self.add(package, version, entry_points={kind: {name: module}}, modules={module: HEAD + "\n" + dedent(body)})
        return module

    def executor(self, name: str, capabilities: str = "", **extra: str) -> str:
        """Install an executor; ``capabilities`` are the arguments of ``ExecutorCapabilities``."""
        return self._part("executors", "Executor", name, f"capabilities=ExecutorCapabilities({capabilities})", extra)

    def runner(self, name: str, capabilities: str = "", more: str = "", **extra: str) -> str:
        """Install a runner; ``more`` are further arguments of ``RunnerPlugin``."""
        return self._part("runners", "Runner", name, f"capabilities=RunnerCapabilities({capabilities}), {more}", extra)

    def scheduler(self, name: str, capabilities: str = "", **extra: str) -> str:
        """Install a scheduler; ``capabilities`` are the arguments of ``SchedulerCapabilities``."""
        return self._part("schedulers", "Scheduler", name, f"capabilities=SchedulerCapabilities({capabilities})", extra)

    def status_sink(self, name: str, options: str = "Opts = NoOptions", **extra: str) -> str:
        """Install a status sink; ``options`` is the source of its class ``Opts``."""
        body = f"""
{options}

@hookimpl
def enginebay_register_status_sinks():
    return [StatusSinkPlugin(name={name!r}, options=Opts, factory=make)]
"""
        return self.plugin("status_sinks", name, body, **extra)

    def _part(self, kind: str, noun: str, name: str, arguments: str, extra: dict[str, str]) -> str:
        body = f"""
@hookimpl
def enginebay_register_{kind}():
    return [{noun}Plugin(name={name!r}, factory=make, {arguments})]
"""
        return self.plugin(kind, name, body, **extra)


def fake_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A site in front of ``sys.path``; its modules are forgotten afterwards. For a fixture: ``yield from``."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.syspath_prepend(str(folder))
    site = FakeSite(folder)
    yield site
    for name in site.modules:
        sys.modules.pop(name, None)

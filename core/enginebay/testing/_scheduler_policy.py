"""The part of the schedulers' suite on what a plugin sees and touches: committed tokens only, and public names only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from enginebay.interfaces import Kind, Policy, RequestView, SchedulerContext, SchedulerPlugin
from enginebay.plugins import PluginHost
from enginebay.scheduling import MechanicsScheduler
from enginebay.testing._loads import random_load
from enginebay.testing._loop import CoreLoop
from enginebay.testing._scheduler_base import LoadedScheduler, SchedulerBase, overlaps

_ALWAYS = ("key", "victim", "on_scheduled", "on_output", "on_finished")
_WHERE_WRITTEN = ("group", "choose", "admit")


class PolicyTests(SchedulerBase):
    """Policies are watched from within; of whole schedulers the simulated core sees what they tell the runner."""

    def test_no_placeholder_is_seen_as_a_token(self, loaded: LoadedScheduler) -> None:
        """PLACEHOLDER: with steps in flight, all that a policy is told and may read is what was committed, once."""
        plugin, options = loaded
        heard: dict[str, list[int]] = {}
        ended: list[str] = []
        loops: list[CoreLoop] = []
        faults: list[str] = []  # an exception in a policy would be taken for its own

        def look(method: str, request: RequestView, *more: Any) -> None:
            committed = len(loops[0].output[request.request_id])
            seen = request.num_output_tokens, request.num_tokens - request.num_prompt_tokens
            if seen != (committed, committed) or request.num_computed_tokens > request.num_tokens:
                faults.append(f"{method}() sees {seen} tokens of {request.request_id}; {committed} are committed")
            if method == "on_output":
                heard.setdefault(request.request_id, []).extend(*more)
            if method == "on_finished":
                ended.append(request.request_id)

        def watched(context: SchedulerContext[Any]) -> Any:
            made = plugin.factory(context)
            if isinstance(made, Policy):
                watch(made, look)
            return made

        spy = SchedulerPlugin(
            name=plugin.name, factory=watched, options=plugin.options, capabilities=plugin.capabilities
        )
        for seed in (3, 4, 5):
            load = random_load(seed)
            for depth in (2, 1):
                loops[:] = [self.loop((spy, options), load, depth=depth)]
                heard.clear()
                ended.clear()
                if depth == 1 or overlaps(loaded, loops[0]):
                    loops[0].run_load(load)
                    break
            assert not faults, faults[0]
            if isinstance(loops[0].scheduler, MechanicsScheduler):
                assert {request_id: tokens for request_id, tokens in loops[0].output.items() if tokens} == heard
                assert sorted(ended) == sorted(loops[0].finished)

    def test_nothing_private_is_imported(self) -> None:
        """STEAL: names of enginebay that begin with an underscore change without notice."""
        module = PluginHost().find(Kind.SCHEDULER, self.name).module
        found = list(private_imports(module))
        assert not found, "private names of enginebay are imported:\n" + "\n".join(found)


def watch(policy: Policy[Any], look: Callable[..., None]) -> None:
    """Let ``look(method, request, *more)`` see each request that the policy is given, by a subclass made for it."""
    cls = type(policy)
    names = [*_ALWAYS, *(name for name in _WHERE_WRITTEN if getattr(cls, name) is not getattr(Policy, name))]

    def watching(name: str) -> Callable[..., Any]:
        original = getattr(cls, name)

        def method(self: Policy[Any], first: Any, *more: Any) -> Any:
            for request in first if isinstance(first, Sequence) else (first,):
                look(name, request, *more)
            return original(self, first, *more)

        return method

    policy.__class__ = type(cls.__name__, (cls,), {name: watching(name) for name in names})


def private_imports(module: str) -> Iterator[str]:
    """Where the package to which a plugin's module belongs imports what is private to enginebay: file, line, name."""
    spec = find_spec(module.partition(".")[0])
    assert spec is not None, f"{module} cannot be found"
    folders = spec.submodule_search_locations
    files = [Path(spec.origin or "")] if folders is None else [f for at in folders for f in Path(at).rglob("*.py")]
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _imported(node):
                first, *parts = name.split(".")
                if first == "enginebay" and any(part.startswith("_") for part in parts):
                    yield f"{path}, line {getattr(node, 'lineno', 0)}: {name}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []

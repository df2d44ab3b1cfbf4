"""From a name to a descriptor: import the module, register its hooks, take the descriptor of that name, check it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pluggy

from enginebay import hookspecs
from enginebay.errors import PluginBroken, PluginTooNew, in_words, is_interrupt, one_line, shown
from enginebay.interfaces import (
    ExecutorPlugin,
    ExtensionPlugin,
    Kind,
    Options,
    Plugin,
    RunnerPlugin,
    SchedulerPlugin,
    StatusSinkPlugin,
    WorkerExtensionPlugin,
)
from enginebay.plugins._find import Installed

DESCRIPTORS: Mapping[Kind, type[Plugin[Any]]] = {
    Kind.EXECUTOR: ExecutorPlugin,
    Kind.RUNNER: RunnerPlugin,
    Kind.SCHEDULER: SchedulerPlugin,
    Kind.STATUS_SINK: StatusSinkPlugin,
    Kind.EXTENSION: ExtensionPlugin,
    Kind.WORKER_EXTENSION: WorkerExtensionPlugin,
}


def new_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows our hooks."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def who(plugin: Installed) -> str:
    """How a plugin is named in an error: "executor 'mp' of enginebay 0.1.0"."""
    return f"{plugin.kind.noun} '{plugin.name}' of {plugin.origin}"


def load_module(plugin: Installed) -> ModuleType:
    """Import the plugin's module; whatever its import raises becomes ``PluginBroken``, with the cause."""
    if not all(part.isidentifier() for part in plugin.module.split(".")):
        raise PluginBroken(
            f"{who(plugin)} is broken: its entry point is '{plugin.module}', and must name a module, "
            f"as in \"{plugin.name} = 'my_package.plugin'\"."
        )
    try:
        return import_module(plugin.module)
    except BaseException as error:  # also SystemExit, and what native code raises
        if is_interrupt(error):
            raise
        raise PluginBroken(
            f"{who(plugin)} is broken: importing {plugin.module} raised {in_words(error)}. "
            f"Repair or uninstall {plugin.package}, or choose another {plugin.kind.noun}."
        ) from error


def register(manager: pluggy.PluginManager, plugin: object, name: str, owner: Installed) -> None:
    """Register an object's hook implementations; afterwards either all of them are in force or none."""
    if manager.is_registered(plugin):
        return
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
        _refuse_wrappers(manager, plugin, name)
    except (pluggy.PluginValidationError, ValueError) as error:
        if manager.is_registered(plugin):
            manager.unregister(plugin)
        raise PluginBroken(f"{who(owner)} is broken: {_pluggy_said(error, name)}") from error


def take_descriptor(manager: pluggy.PluginManager, module: ModuleType, plugin: Installed) -> Plugin[Any]:
    """The descriptor that the module's register hook returns under the entry point's name."""
    hook, expected = plugin.kind.register_hook, DESCRIPTORS[plugin.kind]
    implementations = [i for i in getattr(manager.hook, hook).get_hookimpls() if i.plugin is module]
    if not implementations:
        bare = inspect.isfunction(getattr(module, hook, None))
        said = f"has {hook} without @hookimpl" if bare else f"has no {hook}"
        raise PluginBroken(f"{who(plugin)} is broken: module {plugin.module} {said}.")
    try:
        offered: Any = implementations[0].function()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PluginBroken(f"{who(plugin)} is broken: {hook} of {plugin.module} raised {in_words(error)}.") from error
    if not isinstance(offered, list | tuple) or not all(isinstance(o, expected) for o in offered):
        raise PluginBroken(
            f"{who(plugin)} is broken: {hook} of {plugin.module} returned {_shape(offered)}, "
            f"and must return a list of {expected.__name__}."
        )
    named = [o for o in offered if o.name == plugin.name]
    if len(named) != 1:
        names = one_line(", ".join(f"'{o.name}'" for o in offered)) or "nothing"
        raise PluginBroken(
            f"{who(plugin)} is broken: {hook} of {plugin.module} registers {names}, "
            f"and the entry point asks for exactly one '{plugin.name}'."
        )
    descriptor: Plugin[Any] = named[0]
    _check_fields(descriptor, plugin)
    return descriptor


def check_api(descriptor: Plugin[Any], plugin: Installed, offered: tuple[int, int]) -> None:
    """Same major, minor not above ours; else ``PluginTooNew`` with both numbers."""
    needs = descriptor.requires_api
    if needs[0] == offered[0] and needs[1] <= offered[1]:
        return
    way_out = (
        f"upgrade enginebay, or install an older {plugin.package}"
        if needs > offered
        else f"install a newer {plugin.package}"
    )
    raise PluginTooNew(
        f"{who(plugin)} needs plugin API {needs[0]}.{needs[1]}, and this engine offers {offered[0]}.{offered[1]}: "
        f"{way_out}."
    )


def missing_modules(descriptor: Plugin[Any]) -> dict[str, str]:
    """The modules that the plugin needs and that are not installed, with what to pip install; imports nothing."""
    return {m: r for m, r in descriptor.requires_modules.items() if not _is_there(m.partition(".")[0])}


def check_modules(descriptor: Plugin[Any], plugin: Installed) -> None:
    """Refuse a plugin whose optional packages are missing, with the pip line that brings them."""
    missing = missing_modules(descriptor)
    if missing:
        packages = f"package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}"
        requirements = " ".join(f"'{r}'" for r in dict.fromkeys(missing.values()))
        raise PluginBroken(f"{plugin.kind.noun} '{plugin.name}' needs the {packages}: pip install {requirements}")


def _check_fields(descriptor: Plugin[Any], plugin: Installed) -> None:
    api: Any = descriptor.requires_api  # a dataclass checks nothing, and a stranger wrote it
    options: Any = descriptor.options
    fault = None
    if not (isinstance(api, tuple) and len(api) == 2 and all(type(n) is int for n in api)):
        fault = f"its requires_api is {shown(api)}, and must be (major, minor)"
    elif not (isinstance(options, type) and issubclass(options, Options)):
        fault = f"its options are {shown(options)}, and must be a subclass of enginebay.interfaces.Options"
    elif options.model_config.get("extra") != "forbid":
        fault = f"its options model {options.__name__} accepts keys that it does not know: keep extra='forbid'"
    elif not callable(getattr(descriptor, "factory", None)):
        fault = "its factory cannot be called"
    elif isinstance(descriptor, WorkerExtensionPlugin):
        fault = _fault_of_methods(descriptor.methods)
    if fault:
        raise PluginBroken(f"{who(plugin)} is broken: {one_line(fault)}.")


def _fault_of_methods(methods: Any) -> str | None:
    if not isinstance(methods, tuple) or not all(isinstance(name, str) for name in methods):
        return f"its methods are {shown(methods)}, and must be a tuple of names"
    bad = [name for name in methods if not name.isidentifier() or name.startswith("_")]
    return f"it declares the method {bad[0]!r}: names of public methods are expected" if bad else None


def _refuse_wrappers(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    for caller in manager.get_hookcallers(plugin) or ():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin and (implementation.wrapper or implementation.hookwrapper):
                raise ValueError(f"hook {caller.name} of {name} is a wrapper, and hooks of enginebay are not wrapped.")


def _pluggy_said(error: Exception, name: str) -> str:
    text = one_line(" ".join(str(error).split()))
    if text.startswith("unknown hook"):
        hook = text.split("'")[1]
        return f"{name} implements {hook}, and there is no such hook in this version."
    return text


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # an imported module without a spec
        return module in sys.modules


def _shape(value: object) -> str:
    if not isinstance(value, list | tuple):
        return f"a {type(value).__name__}" if value is not None else "None"
    return f"a {type(value).__name__} with {', '.join(dict.fromkeys(type(v).__name__ for v in value))}"

"""The plugin host: what is installed, and plugins loaded by name with their options checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar, cast

from enginebay.errors import EnginebayError, PluginBroken, in_words, is_interrupt
from enginebay.interfaces import (
    API_VERSION,
    ExecutorPlugin,
    ExtensionPlugin,
    GraphPass,
    Kind,
    Options,
    Plugin,
    RunnerPlugin,
    SchedulerPlugin,
    StatusSinkPlugin,
    WorkerExtensionPlugin,
)
from enginebay.messages import PluginIdentity
from enginebay.plugins._find import Installed, clashes, find, pick
from enginebay.plugins._hooks import Hooks
from enginebay.plugins._load import (
    check_api,
    check_modules,
    load_module,
    new_manager,
    register,
    take_descriptor,
    who,
)
from enginebay.plugins._options import canonical_json, validate_options
from enginebay.plugins._pass_order import order_passes
from enginebay.plugins._passes import take_passes

P = TypeVar("P", bound=Plugin[Any])
_KINDS = {kind.noun: kind for kind in Kind}


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[P]):
    """A plugin that was asked for: its descriptor, its validated options, and the identity all processes share."""

    plugin: P
    options: Options
    identity: PluginIdentity

    @property
    def origin(self) -> str:
        """The package with its version: "enginebay 0.1.0"."""
        return f"{self.identity.package} {self.identity.version}"

    @property
    def name_and_version(self) -> str:
        """The plugin with its package's version: "runner 'acme' 1.2"."""
        return f"{self.identity.kind} '{self.identity.name}' {self.identity.version}"


class PluginHost:
    """Finds plugins by metadata, and loads what is asked for, by name.

    One host serves one engine, or one worker; modules that it loads have their hooks in ``hooks``. ``entry_points``
    stands in for what the installed packages offer, ``api`` for the plugin API of this engine.
    """

    def __init__(
        self, *, entry_points: Iterable[metadata.EntryPoint] | None = None, api: tuple[int, int] = API_VERSION
    ) -> None:
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._api = api
        self._installed: tuple[Installed, ...] | None = None
        self._manager = new_manager()
        self.hooks = Hooks(self._manager)

    def installed(self, kind: Kind | None = None) -> tuple[Installed, ...]:
        """What the installed packages offer, of one kind or of all. Imports no plugin."""
        if self._installed is None:
            self._installed = find(self._entry_points)
        return tuple(i for i in self._installed if kind is None or i.kind is kind)

    def clashes(self) -> tuple[tuple[Installed, ...], ...]:
        """Plugins of the same kind and name from different packages: an error for whoever asks for them."""
        return clashes(self.installed())

    def find(self, kind: Kind, name: str) -> Installed:
        """The one plugin of that kind and name; raises ``PluginNotFound`` or ``PluginClash``."""
        return pick(self.installed(), kind, name)

    def descriptor(self, kind: Kind, name: str) -> Plugin[Any]:
        """Import the plugin's module, register its hooks, and return its descriptor, checked against our API.

        Raises ``PluginBroken`` and ``PluginTooNew`` beside what ``find`` raises.
        """
        return self._descriptor(self.find(kind, name))

    def load_runner_plugin(self, name: str) -> RunnerPlugin[Any]:
        """A runner's descriptor before it is chosen: its optional packages are there, its options not yet asked."""
        installed = self.find(Kind.RUNNER, name)
        descriptor = self._descriptor(installed)
        check_modules(descriptor, installed)
        return cast("RunnerPlugin[Any]", descriptor)

    def executor_plugins(self) -> list[ExecutorPlugin[Any]]:
        """The descriptors of all executors that are installed and can be loaded, with what they need."""
        found: list[ExecutorPlugin[Any]] = []
        for installed in self.installed(Kind.EXECUTOR):
            try:
                descriptor = self._descriptor(installed)
                check_modules(descriptor, installed)
            except EnginebayError:
                continue  # its own error is told when it is asked for
            found.append(cast("ExecutorPlugin[Any]", descriptor))
        return found

    def check(self, kind: Kind, name: str, options: Mapping[str, Any], source: str = "engine.toml") -> None:
        """Load a plugin of any kind for what may be wrong with it or its options; nothing is made of it."""
        self._load(kind, name, options, source)

    def load_executor(
        self, name: str, options: Mapping[str, Any], source: str = "engine.toml"
    ) -> Loaded[ExecutorPlugin[Any]]:
        """Load an executor; ``source`` is named when its options are rejected."""
        return cast("Loaded[ExecutorPlugin[Any]]", self._load(Kind.EXECUTOR, name, options, source))

    def load_runner(
        self, name: str, options: Mapping[str, Any], source: str = "engine.toml"
    ) -> Loaded[RunnerPlugin[Any]]:
        """Load a model runner; ``source`` is named when its options are rejected."""
        return cast("Loaded[RunnerPlugin[Any]]", self._load(Kind.RUNNER, name, options, source))

    def load_scheduler(
        self, name: str, options: Mapping[str, Any], source: str = "engine.toml"
    ) -> Loaded[SchedulerPlugin[Any]]:
        """Load a scheduler; ``source`` is named when its options are rejected."""
        return cast("Loaded[SchedulerPlugin[Any]]", self._load(Kind.SCHEDULER, name, options, source))

    def load_status_sinks(
        self, names: Sequence[str], options: Mapping[str, Mapping[str, Any]], source: str = "engine.toml"
    ) -> tuple[Loaded[StatusSinkPlugin[Any]], ...]:
        """Load the status sinks of these names, in their order; ``options`` has a table for those that have any.

        Nothing is made: ``enginebay.status.open_sinks`` does that.
        """
        return tuple(
            cast("Loaded[StatusSinkPlugin[Any]]", self._load(Kind.STATUS_SINK, name, options.get(name, {}), source))
            for name in names
        )

    def load_extensions(
        self, extensions: Mapping[str, Mapping[str, Any]], source: str = "engine.toml"
    ) -> tuple[Loaded[ExtensionPlugin[Any]], ...]:
        """Load the extensions of these names, make them with their options, and register their hooks.

        In order of ``wrap_order`` and name. An extension that is loaded already is left as it is.
        """
        loaded = [
            cast("Loaded[ExtensionPlugin[Any]]", self._load(Kind.EXTENSION, name, options, source))
            for name, options in extensions.items()
        ]
        loaded.sort(key=lambda one: (one.plugin.wrap_order, one.plugin.name))
        for one in loaded:
            self._make_extension(one)
        return tuple(loaded)

    def load_worker_extensions(
        self, names: Sequence[str], options: Mapping[str, Mapping[str, Any]], source: str = "engine.toml"
    ) -> tuple[Loaded[WorkerExtensionPlugin[Any]], ...]:
        """Load the worker extensions of these names, in their order; ``options`` has a table for those that have any.

        Nothing is made: that is the worker's to do.
        """
        return tuple(
            cast(
                "Loaded[WorkerExtensionPlugin[Any]]",
                self._load(Kind.WORKER_EXTENSION, name, options.get(name, {}), source),
            )
            for name in names
        )

    def graph_passes(self, loaded: Iterable[Loaded[Any]]) -> tuple[GraphPass, ...]:
        """The graph passes that the modules of these plugins bring, in the order in which they run.

        Where the passes leave it open, that is the order of the plugins: the runner's come first. Raises
        ``PluginBroken`` for a hook that raises, a pass that cannot be used, and an order that cannot be kept.
        """
        owners = {(i := self.find(_KINDS[one.identity.kind], one.identity.name)).module: i for one in loaded}
        offers = self.hooks.graph_passes()
        offered: list[GraphPass] = []
        for owner in owners.values():
            if offer := offers.get(_registered_as(owner)):
                offered += take_passes(offer, owner)
        return tuple(order_passes(offered))

    def _make_extension(self, loaded: Loaded[ExtensionPlugin[Any]]) -> None:
        installed = self.find(Kind.EXTENSION, loaded.plugin.name)
        name = f"extension '{installed.name}' ({installed.origin})"
        if self._manager.has_plugin(name):
            return
        try:
            made = loaded.plugin.factory(loaded.options)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise PluginBroken(f"{who(installed)} is broken: making it raised {in_words(error)}") from error
        register(self._manager, made, name, installed)
        self.hooks.refresh({name: loaded.plugin.wrap_order})

    def _load(self, kind: Kind, name: str, options: Mapping[str, Any], source: str) -> Loaded[Plugin[Any]]:
        installed = self.find(kind, name)
        descriptor = self._descriptor(installed)
        check_modules(descriptor, installed)
        try:
            valid = validate_options(descriptor, kind, options, source)
            written = canonical_json(valid)
        except EnginebayError:
            raise
        except BaseException as error:  # a stranger's model: pydantic passes on what is no ValueError
            if is_interrupt(error):
                raise
            raise PluginBroken(
                f"{who(installed)} is broken: its options model {descriptor.options.__name__} raised {in_words(error)}"
            ) from error
        identity = PluginIdentity(
            kind=kind.noun,
            name=name,
            package=installed.package,
            version=installed.version,
            options=written,
        )
        return Loaded(plugin=descriptor, options=valid, identity=identity)

    def _descriptor(self, installed: Installed) -> Plugin[Any]:
        module = load_module(installed)
        register(self._manager, module, _registered_as(installed), installed)
        self.hooks.refresh()
        descriptor = take_descriptor(self._manager, module, installed)
        check_api(descriptor, installed, self._api)
        return descriptor


def _registered_as(installed: Installed) -> str:
    """The name under which the hooks of a plugin's module are registered."""
    return f"{installed.module} ({installed.origin})"

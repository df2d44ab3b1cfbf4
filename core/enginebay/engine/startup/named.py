"""All that is wrong with what a config names, in one report: plugins, their options and the model; nothing is made."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginebay.config import EngineConfig, Resolved, refuse
from enginebay.errors import ConfigError, OptionsRejected
from enginebay.interfaces import Kind
from enginebay.messages import ModelInfo
from enginebay.plugins import PluginHost

__all__ = ["also_wrong", "check_named"]

_MODEL: Final = "model.path"
_SWAP: Final = "swap"
"""The origin of what a command names, and no config."""


@dataclass(frozen=True, kw_only=True)
class _Named:
    """One plugin that a config asks for. ``key`` is where it is named."""

    kind: Kind
    key: str
    name: str
    options: Mapping[str, Any]
    source: str


def check_named(resolved: Resolved, host: PluginHost, model: ModelInfo | None = None) -> ModelInfo:
    """The model, read unless it is given. Raises ``ConfigError`` with all faults, each with its origin and key.

    Of one fault the error is of its own class: ``PluginError``, ``ModelError``.
    """
    faults = [_told(resolved, one.key, error) for one, error in _faulty(resolved, host)]
    if model is None:
        try:
            model = _read(resolved.config, convert=not faults)
        except ConfigError as error:
            faults.append(_told(resolved, _MODEL, error))
    if len(faults) == 1:
        raise faults[0]
    refuse([str(fault) for fault in faults])
    assert model is not None, "it is left out beside other faults alone"
    return model


def also_wrong(resolved: Resolved, left_out: Collection[str]) -> list[str]:
    """The same faults, of what is left of a config that has others. ``left_out``: keys that do not say what they say
    there."""
    host = PluginHost()
    found = [(one.key, error) for one, error in _faulty(resolved, host)]
    try:
        _read(resolved.config, convert=False)
    except ConfigError as error:
        found.append((_MODEL, error))
    known = [(key, error) for key, error in found if not {key, key.partition(".")[0]} & set(left_out)]
    return [str(_told(resolved, key, error)) for key, error in known]


def _faulty(resolved: Resolved, host: PluginHost) -> Iterator[tuple[_Named, ConfigError]]:
    for one in _named(resolved):
        try:
            host.check(one.kind, one.name, one.options, one.source)
        except ConfigError as error:
            yield one, error


def _named(resolved: Resolved) -> Iterator[_Named]:
    config, source = resolved.config, resolved.source
    for kind, used in ((Kind.EXECUTOR, config.executor), (Kind.SCHEDULER, config.scheduler)):
        options = source(f"{kind.noun}.options")
        yield _Named(kind=kind, key=f"{kind.noun}.use", name=used.use, options=used.options, source=options)
    if (runner := config.runner).use != "auto":
        options = source("runner.options")
        yield _Named(kind=Kind.RUNNER, key="runner.use", name=runner.use, options=runner.options, source=options)
    several: list[tuple[Kind, str, Collection[str], Mapping[str, Mapping[str, Any]], str]] = [
        (Kind.EXTENSION, "extensions.{}", config.extensions, config.extensions, "extensions"),
        (Kind.WORKER_EXTENSION, "worker.extensions", config.worker.extensions, config.worker.options, "worker.options"),
        (Kind.STATUS_SINK, "status.sinks", config.status.sinks, config.status.options, "status"),
    ]
    for kind, key, names, tables, where in several:
        for name in names:
            given = tables.get(name, {})
            yield _Named(kind=kind, key=key.format(name), name=name, options=given, source=source(where))


def _read(config: EngineConfig, *, convert: bool) -> ModelInfo | None:
    """``convert``: a GGUF file may be converted, which takes a while; else one that is there is left as it is."""
    from enginebay.models import read_model_info, resolve_model

    path = config.model.path
    if not convert and path is not None and path.is_file():
        return None
    return read_model_info(
        resolve_model(path, progress=True),
        name=config.model.served_model_name,
        needs_tokenizer=config.model.tokenizer is None,
    )


def _told(resolved: Resolved, key: str, error: ConfigError) -> ConfigError:
    """The error with where its key was set. What an error says itself is not said twice."""
    if isinstance(error, OptionsRejected) or (key == _MODEL and resolved.config.model.path is None):
        return error
    section, _, name = key.partition(".")
    origin = resolved.source(key) if key.startswith("extensions.") else resolved.origin(key)
    if origin == _SWAP:
        return error
    where = "" if origin == "default" else f"{origin}: "
    told = copy.copy(error)
    told.args = (f"{where}[{section}] {name}: {error}",)
    told.__cause__ = error.__cause__
    return told

"""``enginebay describe``: one plugin, with what it can do and which options it takes."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

import click
from pydantic import ValidationError

from enginebay.cli._style import columns, printable
from enginebay.errors import EnginebayError, PluginBroken, in_words, is_interrupt
from enginebay.interfaces import (
    BatchConstraints,
    Kind,
    Options,
    Plugin,
    Policy,
    SchedulerLimits,
    SchedulerPlugin,
    WorkerExtensionPlugin,
)
from enginebay.plugins import Installed, PluginHost, section_of
from enginebay.scheduling import is_policy

_KINDS = {kind.noun: kind for kind in Kind}
BY_MECHANICS: Final = "by the core's mechanics"
"""A policy declares nothing of it: its next step is drawn up by code that is not its own."""


@click.command("describe")
@click.argument("kind", type=click.Choice(sorted(_KINDS)))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(kind: str, name: str, as_json: bool) -> None:
    """Describe one plugin: package, API, capabilities, and options with their defaults.

    Exit codes: 0, and 2 when no such plugin is installed, or it is broken.

    \b
    Examples:
      enginebay describe runner v1
      enginebay describe scheduler fcfs --json
    """
    host = PluginHost()
    installed = host.find(_KINDS[kind], name)
    plugin = host.descriptor(_KINDS[kind], name)
    try:
        options = _options(plugin.options)
    except BaseException as error:  # a stranger's model may raise anything while it is described
        if is_interrupt(error):
            raise
        raise PluginBroken(
            f"{kind} '{name}' of {installed.origin} is broken: its options have no schema: {in_words(error)}"
        ) from error
    if as_json:
        click.echo(json.dumps(_as_json(installed, plugin, options), indent=2, default=str))
        return
    about, capabilities = _about(installed, plugin), _capabilities(plugin)
    parts = ["\n".join([f"{kind} {name}", *columns(list(about.items()))])]
    if capabilities:
        rows = columns([(key, _shown(value)) for key, value in capabilities.items()])
        parts.append("\n".join(["capabilities", *rows]))
    rows = columns([(o["name"], _declared(o), o["description"]) for o in options])
    parts.append("\n".join([f"options, under {section_of(installed.kind, name)}", *(rows or ["  none"])]))
    click.echo(printable("\n\n".join(parts)))


def _about(installed: Installed, plugin: Plugin[Any]) -> dict[str, str]:
    about = {
        "package": installed.origin,
        "module": installed.module,
        "plugin API": ".".join(map(str, plugin.requires_api)),
    }
    if plugin.summary:
        about["summary"] = plugin.summary
    if plugin.requires_modules:
        about["needs"] = ", ".join(f"{m} (pip install '{r}')" for m, r in sorted(plugin.requires_modules.items()))
    for key in ("preference", "wrap_order"):
        if hasattr(plugin, key):
            about[key.replace("_", " ")] = str(getattr(plugin, key))
    if isinstance(plugin, WorkerExtensionPlugin):
        about["methods"] = ", ".join(plugin.methods) or "none"
    return about


def _capabilities(plugin: Plugin[Any]) -> dict[str, Any]:
    """Capabilities in the order of their dataclass, a runner's batch constraints behind them."""
    capabilities: Any = getattr(plugin, "capabilities", None)
    if capabilities is None:
        return {}
    flat: dict[str, Any] = {}
    for field in fields(capabilities):
        value = getattr(capabilities, field.name)
        if isinstance(value, BatchConstraints):
            flat |= {f"constraints.{name}": getattr(value, name) for name in value.__struct_fields__}
            flat["constraints.block_sizes"] = value.block_sizes or "any"
        else:
            flat[field.name] = sorted(value) if isinstance(value, frozenset) else value
    if isinstance(plugin, SchedulerPlugin) and not plugin.capabilities.overlap_safe and _is_policy(plugin):
        flat["overlap_safe"] = BY_MECHANICS
    return flat


def _is_policy(plugin: SchedulerPlugin[Any]) -> bool:
    """Whether the plugin makes a policy, as far as one can be made of options that are all defaults."""
    factory: object = plugin.factory
    if isinstance(factory, type):
        return issubclass(factory, Policy)
    limits = SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=16, max_model_len=16)
    try:
        return is_policy(plugin, plugin.options(), limits=limits)
    except (EnginebayError, ValidationError):
        return False


def _options(model: type[Options]) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    return [
        {
            "name": name,
            "type": _type(part, schema.get("$defs", {})),
            "required": name in required,
            "default": part.get("default"),
            "description": part.get("description", ""),
        }
        for name, part in schema.get("properties", {}).items()
    ]


def _declared(option: dict[str, Any]) -> str:
    if option["required"]:
        return f"{option['type']}, required"
    return f"{option['type']} = {'unset' if option['default'] is None else json.dumps(option['default'])}"


def _type(part: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A JSON schema in a few words: "integer >= 1", "'a' | 'b'", "list of string"."""
    if "$ref" in part:
        return _type(definitions.get(part["$ref"].rpartition("/")[2], {}), definitions)
    if "enum" in part or "const" in part:
        return " | ".join(repr(v) for v in part.get("enum", [part.get("const")]))
    for key in ("anyOf", "oneOf", "allOf"):
        if key in part:
            branches = [p for p in part[key] if p.get("type") != "null"]  # TOML has no null: the key is left out
            return " | ".join(dict.fromkeys(_type(p, definitions) for p in branches))
    if part.get("type") == "array":
        inner = part.get("items")
        return f"list of {_type(inner, definitions)}" if isinstance(inner, dict) else "list"
    text = "table" if part.get("type") == "object" else str(part.get("type", "any"))
    for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if key in part:
            text += f" {sign} {part[key]}"
    return text


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "no limit" if value is None else str(value)


def _as_json(installed: Installed, plugin: Plugin[Any], options: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": installed.kind.noun,
        "name": installed.name,
        "package": installed.package,
        "version": installed.version,
        "module": installed.module,
        "requires_api": list(plugin.requires_api),
        "requires_modules": plugin.requires_modules,
        "summary": plugin.summary,
        "capabilities": {key: value == BY_MECHANICS or value for key, value in _capabilities(plugin).items()},
        "options": options,
        **({"methods": list(plugin.methods)} if isinstance(plugin, WorkerExtensionPlugin) else {}),
    }

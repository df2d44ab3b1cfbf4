"""The JSON schema of ``engine.toml`` with the options of every installed plugin, for editors."""

from __future__ import annotations

import json
from typing import Any

from enginebay.config import EngineConfig
from enginebay.errors import PluginError, in_words, is_interrupt
from enginebay.interfaces import Kind
from enginebay.plugins._host import PluginHost

_SECTIONS = {
    "ExecutorConfig": Kind.EXECUTOR,
    "RunnerConfig": Kind.RUNNER,
    "SchedulerConfig": Kind.SCHEDULER,
}


def config_schema(host: PluginHost) -> tuple[dict[str, Any], list[str]]:
    """The schema, and a warning for each installed plugin that could not be loaded and is left out of it."""
    schema = EngineConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "engine.toml"
    definitions: dict[str, Any] = schema["$defs"]
    warnings: list[str] = []
    for section, kind in _SECTIONS.items():
        part = definitions[section]
        default = part["properties"]["use"]["default"]
        names = _add_options(host, kind, definitions, warnings)
        # the runner's default is not a plugin's name, and stays allowed
        part["properties"]["use"]["enum"] = sorted({*names, default})
        part["allOf"] = [
            {
                "if": {
                    "properties": {"use": {"const": name}},
                    **({} if name == default else {"required": ["use"]}),
                },
                "then": {"properties": {"options": {"$ref": f"#/$defs/{definition}"}}},
            }
            for name, definition in names.items()
        ]
    extensions = _add_options(host, Kind.EXTENSION, definitions, warnings)
    schema["properties"]["extensions"]["properties"] = {
        name: {"$ref": f"#/$defs/{definition}"} for name, definition in extensions.items()
    }
    workers = _add_options(host, Kind.WORKER_EXTENSION, definitions, warnings)
    definitions["WorkerConfig"]["properties"]["options"]["properties"] = {
        name: {"$ref": f"#/$defs/{definition}"} for name, definition in workers.items()
    }
    sinks = _add_options(host, Kind.STATUS_SINK, definitions, warnings)
    status = definitions["StatusConfig"]
    named = status["properties"]["sinks"]
    named["items"]["enum"] = sorted({*sinks, *named["default"]})
    status["properties"] |= {name: {"$ref": f"#/$defs/{definition}"} for name, definition in sinks.items()}
    return schema, warnings


def _add_options(host: PluginHost, kind: Kind, definitions: dict[str, Any], warnings: list[str]) -> dict[str, str]:
    """Put the options of all plugins of a kind among the definitions; name → its definition."""
    names: dict[str, str] = {}
    for name in dict.fromkeys(i.name for i in host.installed(kind)):
        prefix = f"{kind.noun}.{name}"
        try:
            model = host.descriptor(kind, name).options
            own = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
            json.dumps(own)  # a default that JSON cannot say would fail at the very end
        except PluginError as error:
            warnings.append(str(error))
            continue
        except BaseException as error:  # a plugin's own model may raise anything while it is described
            if is_interrupt(error):
                raise
            warnings.append(f"{prefix}: its options have no schema: {in_words(error)}")
            continue
        for inner, definition in own.pop("$defs", {}).items():
            definitions[f"{prefix}.{inner}"] = definition
        definitions[f"{prefix}.options"] = own
        names[name] = f"{prefix}.options"
    return names

"""A plugin's options: validated by the model that it declares, and written down so that processes can compare them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from enginebay.config import explain_fault, fault_path, join_faults
from enginebay.errors import OptionsRejected, did_you_mean
from enginebay.interfaces import Kind, Options, Plugin

_SECTIONS: Final[Mapping[Kind, str]] = {
    Kind.STATUS_SINK: "[status.{name}]",
    Kind.EXTENSION: "[extensions.{name}]",
    Kind.WORKER_EXTENSION: "[worker.options.{name}]",
}
"""Of kinds of which several are loaded at once: each has a table of its own."""


def validate_options(descriptor: Plugin[Any], kind: Kind, options: Mapping[str, Any], source: str) -> Options:
    """The options as the plugin's own model; ``OptionsRejected`` tells all faults at once, and what is known."""
    model: type[Options] = descriptor.options
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        known = sorted(known_options(model))
        faults: dict[str, list[str]] = {}
        for detail in error.errors(include_url=False):
            where = ".".join(fault_path(detail, options))
            if detail["type"] == "extra_forbidden":
                text = f"unknown option.{did_you_mean(where, known)}".removesuffix(".")
            else:
                text = explain_fault(detail)
            faults.setdefault(where, []).append(text)
        told = "; ".join(f"{w}: {join_faults(t)}" if w else join_faults(t) for w, t in faults.items())
        end = "" if told.endswith("?") else "."
        raise OptionsRejected(
            f"{source}: {kind.noun} '{descriptor.name}' rejects {section_of(kind, descriptor.name)}: "
            f"{told}{end} Known options: {', '.join(known) or 'none'}"
        ) from None


def known_options(model: type[Options]) -> dict[str, Any]:
    """The names under which a model's fields are written in a config file, with the fields."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def section_of(kind: Kind, name: str) -> str:
    """Where a plugin's options stand: "[executor.options]", "[extensions.tracer]", "[worker.options.marks]"."""
    return _SECTIONS.get(kind, "[{noun}.options]").format(noun=kind.noun, name=name)


def canonical_json(options: Options) -> str:
    """The options as JSON with sorted keys, sets included: equal text in every process for equal options."""
    return json.dumps(options.model_dump(mode="python"), default=_plain, sort_keys=True, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted((to_jsonable_python(v) for v in value), key=lambda v: json.dumps(v, sort_keys=True))
    return to_jsonable_python(value)

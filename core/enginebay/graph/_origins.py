"""Where the constants of a graph come from, as JSON: one key says which kind of origin it is."""

from __future__ import annotations

from typing import Any, Final

from enginebay.errors import GraphError
from enginebay.interfaces import Origin, Packed, Parameter, Table

_MAX_NAME: Final = 500
_MAX_PARTS: Final = 10_000


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """``{"parameter": name}``, ``{"packed": [names], "dim": 0}`` or ``{"table": kind, …its settings}``."""
    match origin:
        case Parameter(name=name):
            return {"parameter": name}
        case Packed(names=names, dim=dim):
            return {"packed": list(names), "dim": dim}
        case Table(kind=kind, settings=settings):
            return {"table": kind, **settings}


def origin_from_json(constant: str, value: Any) -> Origin:
    """The origin that ``origin_to_json`` wrote; raises ``GraphError`` that names the constant."""
    match value:
        case {"parameter": str(name), **rest} if not rest and _is_name(name):
            return Parameter(name=name)
        case {"packed": [_, *_] as names, "dim": int(dim), **rest} if (
            not rest and len(names) <= _MAX_PARTS and all(_is_name(name) for name in names) and 0 <= dim <= 8
        ):
            return Packed(names=tuple(names), dim=dim)
        case {"table": str(kind), **settings} if _is_name(kind):
            return Table(kind=kind, settings={str(key): setting for key, setting in settings.items()})
    raise GraphError(f"constant {constant!r:.80}: {str(value)!r:.80} does not say where it comes from")


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()

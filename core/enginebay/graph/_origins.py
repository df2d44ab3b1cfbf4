"""Where the constants of a graph come from, as JSON: one key says which kind of origin it is."""

from __future__ import annotations

from typing import Any, Final

from enginebay.errors import GraphError
from enginebay.interfaces import Origin, Packed, Parameter, Ranges, Table

_MAX_NAME: Final = 500
_MAX_PARTS: Final = 10_000
_MAX_DIM: Final = 8


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """``{"parameter": name}``, ``{"packed": [names], "dim": 0}`` or ``{"table": kind, …its settings}``.

    A part of a parameter has ``"dim"`` and ``"ranges": [[begin, end]]`` too, and a pack of parts a list of such ranges.
    """
    match origin:
        case Parameter(name=name, dim=dim, ranges=ranges):
            return {"parameter": name, **({"dim": dim, "ranges": _listed(ranges)} if ranges else {})}
        case Packed(names=names, dim=dim, ranges=parts):
            written = {"ranges": [_listed(ranges) for ranges in parts]} if parts else {}
            return {"packed": list(names), "dim": dim, **written}
        case Table(kind=kind, settings=settings):
            return {"table": kind, **settings}


def origin_from_json(constant: str, value: Any) -> Origin:
    """The origin that ``origin_to_json`` wrote; raises ``GraphError`` that names the constant."""
    match value:
        case {"parameter": str(name), **rest} if not rest and _is_name(name):
            return Parameter(name=name)
        case {"parameter": str(name), "dim": int(dim), "ranges": [_, *_] as ranges, **rest} if (
            not rest and _is_name(name) and 0 <= dim <= _MAX_DIM and _are_ranges(ranges)
        ):
            return Parameter(name=name, dim=dim, ranges=_paired(ranges))
        case {"packed": [_, *_] as names, "dim": int(dim), **rest} if (
            len(names) <= _MAX_PARTS and all(_is_name(name) for name in names) and 0 <= dim <= _MAX_DIM
        ):
            if not rest:
                return Packed(names=tuple(names), dim=dim)
            parts = rest.pop("ranges", None)
            if not rest and isinstance(parts, list) and len(parts) == len(names) and all(map(_are_ranges, parts)):
                return Packed(names=tuple(names), dim=dim, ranges=tuple(map(_paired, parts)))
        case {"table": str(kind), **settings} if _is_name(kind):
            return Table(kind=kind, settings={str(key): setting for key, setting in settings.items()})
    raise GraphError(f"constant {constant!r:.80}: {str(value)!r:.80} does not say where it comes from")


def _listed(ranges: Ranges) -> list[list[int]]:
    return [[begin, end] for begin, end in ranges]


def _paired(ranges: list[list[int]]) -> Ranges:
    return tuple((begin, end) for begin, end in ranges)


def _are_ranges(value: Any) -> bool:
    """Whether this is a list of pairs of numbers, of which each range has some."""
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_PARTS:
        return False
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            return False
        if not 0 <= pair[0] < pair[1] < 2**31:
            return False
    return True


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()

"""What the library accepts of a JSON Schema and does not keep: found in the schema's text, so that it is refused.

Decision: refused, and not looked for in the answer. At its end an answer cannot be mended any more, and the client was
promised one that the schema accepts. What is not kept was found by drawing answers of random schemas at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isfinite, lcm
from typing import Any, Final, TypeGuard

__all__ = ["schema_fault"]

_EXACT: Final = 2**53
_MOST: Final = 10**300
_MOST_FACTOR: Final = 2**32 // 10
_MOST_PLACES: Final = 2000
"""More than any double has behind its point."""
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")
_JOINS: Final = frozenset({"$ref", "anyOf", "oneOf"})
_ADDS_NOTHING: Final = frozenset(
    {"$comment", "$defs", "$id", "$schema", "default", "definitions", "description", "examples", "title", "type"}
)

_Bound = tuple[str, float]


def schema_fault(schema: Any) -> str:
    """What in the schema would not be kept, in one line, or ""."""
    nodes = list(_nodes(schema))
    if (number := next(filter(None, map(_rounded, nodes)), None)) is not None:
        return f"it has the number {number}, which the library rounds to {float(number):.0f}"
    if not all(isfinite(node) for node in nodes if isinstance(node, float)):
        return "it has a number that is larger than every double"
    bounds = [_bounds(node) for node in nodes if isinstance(node, dict)]
    for name, value in (bound for some in bounds for bound in some):
        if abs(value) > _EXACT:
            return f"{name} {value:g} is not kept: a bound has at most 53 bits"
    factors = [[node["multipleOf"]] for node in nodes if isinstance(node, dict) and _is_number(node.get("multipleOf"))]
    if any(map(_joins, nodes)):  # which of them meet is not known
        bounds = [[bound for some in bounds for bound in some]]
        factors = [[factor for some in factors for factor in some]]
    faults = [*map(_of_bounds, bounds), *map(_of_factors, factors), *map(_of_properties, nodes)]
    return next(filter(None, faults), "")


def _nodes(schema: Any) -> Iterator[Any]:
    """Each value in it, also those that are no schemas: some few are refused that could be kept."""
    todo = [schema]
    while todo:
        yield (one := todo.pop())
        todo += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _rounded(one: Any) -> int | None:
    """An integer that no double holds."""
    if isinstance(one, int) and abs(one) > _EXACT and (abs(one) > _MOST or int(float(one)) != one):
        return min(max(one, -_MOST), _MOST)
    return None


def _bounds(node: dict[str, Any]) -> list[_Bound]:
    """Its bounds on numbers. In the oldest drafts ``exclusiveMinimum`` is true, and ``minimum`` its value."""
    named = {name: node.get(name) for name in (*_LOWER, *_UPPER)}
    for inclusive, exclusive in ((_LOWER), (_UPPER)):
        if named[exclusive] is True:
            named[exclusive] = named[inclusive]
    return [(name, one) for name, one in named.items() if _is_number(one)]


def _joins(node: Any) -> bool:
    """Whether something in it must satisfy several schemas, so that their bounds meet."""
    if not isinstance(node, dict):
        return False
    beside = node.keys() - _ADDS_NOTHING
    return (
        "allOf" in node or {"properties", "patternProperties"} <= beside or (len(beside) > 1 and bool(_JOINS & beside))
    )


def _of_bounds(bounds: list[_Bound]) -> str:
    """An integer that is excluded, with the other bound less than 1 from it: the integer itself would be drawn."""
    for name, limit in bounds:
        side = {"exclusiveMinimum": 1, "exclusiveMaximum": -1}.get(name, 0)
        if side * limit < 0 or not side or limit % 1:
            continue
        for other, end in bounds:
            if other in (_UPPER if side > 0 else _LOWER) and 0 < side * (end - limit) < 1:
                return f"{name} {limit:g} with {other} {end:g} is not kept: {limit:g} itself could be drawn"
    return ""


def _of_factors(factors: list[int | float]) -> str:
    """Factors whose common multiple, or its tenfold, the library does not hold in the 32 bits that it has for it."""
    exact = [Fraction(str(factor)) for factor in factors]
    if not exact:
        return ""
    places = next(places for places in range(_MOST_PLACES) if all(10**places % one.denominator == 0 for one in exact))
    whole = [abs(int(one * 10**places)) for one in exact]
    common = lcm(*whole)
    if 0 < (common * max(whole) if len(whole) > 1 else common) < _MOST_FACTOR:
        return ""
    told = ", ".join(f"{factor:g}" for factor in factors[:3])
    return (
        f"multipleOf {told} is not kept: its digits, times those that it meets, are over 0 and below {_MOST_FACTOR:,}"
    )


def _is_number(one: Any) -> TypeGuard[int | float]:
    return isinstance(one, int | float) and not isinstance(one, bool)


def _of_properties(node: Any) -> str:
    """More properties than those that are required, and one: names that it does not list may be drawn repeatedly."""
    least = node.get("minProperties") if isinstance(node, dict) else None
    if not _is_number(least):
        return ""
    required = node.get("required")
    known = len(set(map(str, required))) if isinstance(required, list) else 0
    if least <= known + 1:
        return ""
    return f"minProperties {least:g} is not kept: it may be at most {known + 1}, as {known} are required"

"""Values of clients made plain: of exactly the built-in types, whatever subclass of them was brought.

A subclass can mean another thing by ``<`` or ``==``, and does not cross to a worker: numpy's float64 is a float, and an
IntEnum an int. The built-in type's own methods are asked, so that nothing of the subclass is called. What is of no
built-in type stays as it is: it is refused by whoever looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

__all__ = ["plain", "plain_float", "plain_rows"]

_EXACT: Final[frozenset[type[Any]]] = frozenset({int, str, float, bytes, bool, type(None)})


def plain(value: object) -> Any:
    """The value, or its items, of built-in types; a list becomes a tuple. It looks one level deep."""
    kind = type(value)
    if issubclass(kind, tuple):
        return _items(tuple.__iter__(value))  # type: ignore[arg-type]  # mypy does not narrow by a type() of it
    if issubclass(kind, list):
        return _items(list.__iter__(value))  # type: ignore[arg-type]  # see above
    if issubclass(kind, dict):
        pairs: Iterable[tuple[object, object]] = dict.items(value)  # type: ignore[arg-type]  # see above
        return {_scalar(key): _scalar(item) for key, item in pairs}
    return _scalar(value)


def plain_float(value: object) -> Any:
    """The same, with an integer as the float that it means; one that no float can hold stays as it is."""
    number = plain(value)
    if type(number) is int:
        try:
            return float(number)
        except OverflowError:
            return number
    return number


def plain_rows(value: object) -> Any:
    """The same two levels deep: a tuple of tuples."""
    rows = plain(value)
    return tuple(map(plain, rows)) if type(rows) is tuple else rows


def _items(values: Iterable[object]) -> tuple[Any, ...]:
    items = tuple(values)
    return items if _EXACT.issuperset(map(type, items)) else tuple(map(_scalar, items))


def _scalar(value: object) -> Any:
    kind = type(value)
    if kind in _EXACT:
        return value
    if issubclass(kind, int):
        return int.__int__(value)  # type: ignore[arg-type]  # see above
    if issubclass(kind, float):
        return float.__float__(value)  # type: ignore[arg-type]  # see above
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, bytes):
        return b"".join((value,))  # type: ignore[arg-type]  # see above
    return value

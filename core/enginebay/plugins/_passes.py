"""The graph passes that loaded plugins bring, checked, and with the package that each comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any

from enginebay.errors import PluginBroken, in_words, is_interrupt, one_line
from enginebay.interfaces import GraphPass
from enginebay.plugins._find import Installed
from enginebay.plugins._load import who


def take_passes(offer: Callable[[], Any], owner: Installed) -> list[GraphPass]:
    """What the hook of the owner's module returns; raises ``PluginBroken`` for what cannot be used."""
    where = f"{who(owner)} is broken: enginebay_graph_passes of {owner.module}"
    try:
        offered = offer()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PluginBroken(f"{where} raised {in_words(error)}.") from error
    if not isinstance(offered, list | tuple) or not all(isinstance(one, GraphPass) for one in offered):
        raise PluginBroken(f"{where} must return a list of GraphPass.")
    for one in offered:
        if fault := _fault(one):
            raise PluginBroken(f"{who(owner)} is broken: graph pass {one.name!r:.80}: {one_line(fault)}.")
    return [replace(one, package=owner.origin) for one in offered]


def _fault(one: Any) -> str | None:
    """What is wrong with a pass: a dataclass checks nothing, and a stranger wrote it."""
    if not isinstance(one.name, str) or not one.name.isidentifier():
        return "its name must be an identifier"
    if not callable(one.apply):
        return "its apply cannot be called"
    for field in ("after", "before"):
        names = getattr(one, field)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            return f"its {field} is {names!r}, and must be a tuple of names"
    tolerance = one.tolerance
    if not isinstance(tolerance, int | float) or not isfinite(tolerance) or tolerance < 0:
        return f"its tolerance is {tolerance!r}, and must be a number that is not negative"
    return None

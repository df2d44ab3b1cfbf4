"""Mutants: the real code with one thing broken on purpose, each of which the simulation must notice.

A mutant is a function that patches, with the sentence on what it breaks as its docstring; ``mutated(name)`` is the
context in which it is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mutants import of_blocks, of_overlap, of_recovery, of_requests, of_restarts, of_status
from mutants.patching import Patch

__all__ = ["MUTANTS", "mutated"]

MUTANTS: dict[str, Callable[[Patch], None]] = {
    mutant.__name__: mutant
    for module in (of_blocks, of_overlap, of_recovery, of_requests, of_restarts, of_status)
    for mutant in module.MUTANTS
}
"""All mutants by name."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code with that mutant in force; afterwards it is as before. Raises ``KeyError`` for an unknown name."""
    undo: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, attribute: str, value: Any) -> Any:
        original = getattr(owner, attribute)
        undo.append((owner, attribute, vars(owner)[attribute]))
        setattr(owner, attribute, value)
        return original

    mutant = MUTANTS[name]
    try:
        mutant(patch)
        yield
    finally:
        for owner, attribute, original in reversed(undo):
            setattr(owner, attribute, original)

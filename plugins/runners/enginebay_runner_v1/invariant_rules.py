"""Which numbers of rows a matrix product may be given so that a row's result never depends on the others: arithmetic.

A library chooses its kernel by the number of rows, and kernels sum in different orders. So rows are dealt in pieces
whose sizes were all *seen* to give equal bits, at several places, and no product is ever run with another size. Which
sizes those are is found on the machine itself: another CPU, library or number of threads has others. The choice looks
at bits alone, never at time: a worker that is started again must choose the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

__all__ = ["SIZES", "NoRule", "Rule", "find_rule", "in_words", "places"]

SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 128, 256, 512)
"""Numbers of rows that are tried."""
ENOUGH = 12
"""A set of sizes must reach at least so far, or a long prompt would be computed in crumbs."""
_PADDING = 64
"""And begin at most here, or one token would be padded beyond reason."""
_CALL = 8
"""What one more call costs, in rows."""

Products = Callable[[int, int], Sequence[bytes]]
"""The product of rows ``begin`` to ``end`` of the test's input, run alone: the bytes of each row."""


class NoRule(Exception):
    """No size gives equal bits at every place, or none that is of use. ``rows``: the smallest one that does not."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows give other bits from place to place")
        self.rows = rows


@dataclass(frozen=True)
class Rule:
    """``way``: how the product is run; ``sizes``: numbers of rows, rising, that give equal bits that way."""

    way: str
    sizes: tuple[int, ...]

    def padded(self, rows: int) -> int:
        """The size that takes this many rows; the largest one when none does."""
        return next((size for size in self.sizes if size >= rows), self.sizes[-1])

    def pieces(self, rows: int) -> tuple[int, ...]:
        """Sizes, largest first, that take this many rows; only the last is padded."""
        most = self.sizes[-1]
        whole = max(0, -(-rows // most) - 1)
        return (most,) * whole + _cheapest(self.sizes, rows - whole * most)


@cache
def _cheapest(sizes: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Up to the largest size: fewest rows, a call counted as ``_CALL`` of them."""
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    for count in range(1, rows + 1):
        ways = []
        for size in sizes:
            cost, rest = best[max(0, count - size)]
            ways.append((cost + size + _CALL, tuple(sorted((size, *rest), reverse=True))))
        best.append(min(ways))
    return best[rows][1]


def places(size: int, rows: int, least: int) -> list[int]:
    """Where ``size`` of ``rows`` rows begin: first, one off, last, then side by side, until ``least`` rows are seen.

    The first three are always among them: one off shows a product that knows a row's place in its piece.
    """
    last = rows - size
    begins = list(dict.fromkeys([0, min(1, last), last, *range(size, last, size)]))
    return begins[: max(3, -(-least // size))]


def find_rule(ways: Mapping[str, Products], sizes: Sequence[int], rows: int, least: int) -> Rule:
    """The rule for a product whose test input has ``rows`` rows, of which each size sees ``least``; raises ``NoRule``.

    For each way sizes fall into sets that agree on every row at every place; a single size is a set too. Taken is the
    set with the smallest least size (one row is the commonest case), then with the most sizes, then the first way. A
    way that leaves out at most the size 1 is taken at once.
    """
    ranked: list[tuple[int, int, int, Rule]] = []
    unsteady: list[int] = []
    for order, (way, products) in enumerate(ways.items()):
        groups = _groups(products, sizes, rows, least)
        for group in groups:
            if set(sizes) - set(group) <= {1}:
                return Rule(way, tuple(group))
            if group[0] <= _PADDING and group[-1] >= min(ENOUGH, sizes[-1]):
                ranked.append((group[0], -len(group), order, Rule(way, tuple(group))))
        steady = {size for group in groups for size in group}
        unsteady += [size for size in sizes if size not in steady]
    if not ranked:
        raise NoRule(min(unsteady))
    return min(ranked, key=lambda entry: entry[:3])[3]


def _groups(products: Products, sizes: Sequence[int], rows: int, least: int) -> list[list[int]]:
    """Sizes that agree; one that disagrees with itself from place to place is in none."""
    groups: list[tuple[list[int], dict[int, bytes]]] = []
    for size in sizes:
        own: dict[int, bytes] = {}
        steady = True
        for begin in places(size, rows, least):
            for index, row in enumerate(products(begin, begin + size), begin):
                steady = steady and own.setdefault(index, row) == row
        if not steady:
            continue
        for members, known in groups:
            if all(known.get(index, row) == row for index, row in own.items()):
                members.append(size)
                known.update(own)
                break
        else:
            groups.append(([size], own))
    return [members for members, _ in groups]


def in_words(rules: Sequence[Rule]) -> str:
    """What the rules come to, for ``check``: "rows padded to 2, 4, 8 … 512", or how many rules there are."""
    kinds = list(dict.fromkeys(rule.sizes for rule in rules))
    if len(kinds) == 1:
        return f"rows padded to {', '.join(map(str, kinds[0][:3]))} … {kinds[0][-1]}"
    least = sorted({sizes[0] for sizes in kinds})
    return f"rows padded by {len(kinds)} rules, to {' or '.join(map(str, least))} at least"

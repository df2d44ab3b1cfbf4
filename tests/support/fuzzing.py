"""Drives a fuzz: each case is accepted, or refused by one typed error that fits a line; in time, and without growth."""

from __future__ import annotations

import gc
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from enginebay.errors import EnginebayError

SECONDS = 2.0  # of CPU, for a case: the machine may be busy
GROWTH = 64 << 20  # bytes, over the second half
MAX_CHARS = 1100  # our own words around 1000 of a stranger's
SHORT, SOAK = 1000, 100_000


@dataclass
class Tally:
    """What came of the cases. ``depths`` counts how far each came, by the labels of its kind."""

    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    grown: int = 0
    depths: Counter[str] = field(default_factory=Counter)

    def share(self, label: str) -> float:
        """Of all cases."""
        return self.depths[label] / (self.accepted + self.refused)


def fuzz(
    name: str,
    case: Callable[[random.Random], str | None],
    *,
    count: int,
    seed: int,
    errors: tuple[type[EnginebayError], ...],
    depths: Mapping[str, str] | None = None,
    lines: int = 1,
) -> Tally:
    """Run ``case`` so often, each with a generator of its own, and fail on the first that breaks a rule.

    A case returns a label of how it was accepted, or raises one of ``errors``, whose label is that of the first pattern
    of ``depths`` that is found in the message. ``lines``: how many the message may have.
    """
    process, tally, half = psutil.Process(), Tally(), 0
    begun = time.monotonic()
    for number in range(count):
        if number == count // 2:
            gc.collect()
            half = process.memory_info().rss
        chance = random.Random(f"{seed}/{number}")
        start = time.process_time()
        try:
            label = case(chance) or "accepted"
        except errors as error:
            tally.refused += 1
            label = _label(str(error), depths or {})
            _check_message(str(error), f"{name}, seed {seed}, case {number}", lines)
        except BaseException as error:
            error.add_note(f"{name}, seed {seed}, case {number}")
            raise
        else:
            tally.accepted += 1
        tally.depths[label] += 1
        took = time.process_time() - start
        tally.slowest = max(tally.slowest, took)
        assert took < SECONDS, f"{name}, seed {seed}, case {number}: {took:.1f} s"
    gc.collect()
    tally.grown = process.memory_info().rss - half
    print(
        f"\n{name}: {tally.accepted} accepted, {tally.refused} refused in {time.monotonic() - begun:.1f} s; slowest "
        f"{tally.slowest * 1000:.0f} ms, {tally.grown >> 10} KiB more in the second half; {dict(tally.depths)}"
    )
    assert tally.grown < GROWTH
    assert tally.accepted
    assert tally.refused
    return tally


def _label(message: str, depths: Mapping[str, str]) -> str:
    return next((label for label, pattern in depths.items() if re.search(pattern, message)), "refused")


def _check_message(message: str, which: str, lines: int) -> None:
    told = message.split("\n")
    assert message, which
    assert len(told) <= lines, f"{which}: {message!r}"
    for line in told:
        assert len(line) <= MAX_CHARS, f"{which}: {len(line)} characters: {line[:200]!r}"
        assert line.isprintable(), f"{which}: {line!r}"


NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 16, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64),
    *(-(2**31), -(2**63), -(2**63) - 1, 10**30, 0.0, -0.0, 0.5, 1.0, 1e308, -1e308, 1e-320),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "0",
        "-1",
        "null",
        "é",
        "日本語",
        "🦜",
        "\0",
        "\n",
        "\r\n",
        "\x1b[31m",
        "\u202e",
        "\ufeff",
        "\ufdd0",
    ),
    *("\ud800", "a\udfffb", "../..", "/", "x" * 300, "{{ x }}", "{% x", "<|im_end|>", "%s%n", "__class__", "True"),
)


def any_value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can hold, often odd."""
    kind = chance.randrange(10 if depth < 3 else 7)
    if kind < 3:
        return chance.choice(NUMBERS)
    if kind < 5:
        return chance.choice(TEXTS)
    if kind < 7:
        return chance.choice((None, True, False, [], {}))
    if kind < 9:
        return [any_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): any_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def mutate_json(chance: random.Random, value: Any, pool: tuple[Any, ...] = ()) -> Any:
    """A copy of ``value`` with one place changed: another value, one that is like it, one less, or twice."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        copy = dict(value)
        act = chance.randrange(12)
        if act == 0:
            del copy[key]
        elif act == 1:
            copy[chance.choice(TEXTS)] = copy[key]
        else:
            copy[key] = mutate_json(chance, copy[key], pool)
        return copy
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        copies = list(value)
        act = chance.randrange(12)
        if act == 0:
            del copies[at]
        elif act == 1:
            copies.insert(at, copies[at])
        else:
            copies[at] = mutate_json(chance, copies[at], pool)
        return copies
    act = chance.random()
    if pool and act < 0.5:
        return chance.choice(pool)
    if type(value) is int and act < 0.8:
        return value + chance.choice((-1, 1, 8, -8, 256))
    if isinstance(value, str) and act < 0.7:
        at = chance.randrange(len(value) + 1)
        return value[:at] + chance.choice(TEXTS) + value[at + chance.randrange(3) :]
    return any_value(chance)


def mutate_bytes(chance: random.Random, data: bytes, end: int | None = None) -> bytes:
    """Some bytes before ``end`` flipped, cut out, put in or repeated; now and then the tail is gone."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not changed:
            break
        at = chance.randrange(min(len(changed), end or len(changed)))
        act = chance.randrange(8)
        if act < 4:
            changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif act == 4:
            del changed[at : at + chance.choice((1, 4, 8, 64))]
        elif act == 5:
            changed[at:at] = chance.randbytes(chance.choice((1, 4, 8)))
        elif act == 6:
            changed[at : at + 8] = chance.choice((0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)).to_bytes(
                8, "little"
            )
        else:
            changed[at:at] = changed[at : at + 64]
    if chance.random() < 0.05:
        del changed[chance.randrange(len(changed) + 1) :]
    return bytes(changed)

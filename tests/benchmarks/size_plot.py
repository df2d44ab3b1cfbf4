"""Speeds by batch and context as a table and as a small SVG plot with two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Speeds = Mapping[tuple[int, int], float]
"""(batch, context) → tokens per second."""

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 610, 50, 380
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8e5ea2", "#c77d0a", "#4c4c4c", "#0f8b8d", "#a23b72")

_STYLE = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" font-size="12" fill="#222222"'


def _axes(speeds: Speeds) -> tuple[list[int], list[int]]:
    return sorted({batch for batch, _ in speeds}), sorted({context for _, context in speeds})


def table(speeds: Speeds) -> str:
    """A Markdown table, batches downwards; a size that was not measured is a dash."""
    batches, contexts = _axes(speeds)
    rows = [["batch", *map(str, contexts)], ["---:"] * (len(contexts) + 1)]
    for batch in batches:
        cells = [speeds.get((batch, context)) for context in contexts]
        rows.append([str(batch), *("-" if speed is None else f"{speed:,.0f}" for speed in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last one not above ``low`` to the first one not below ``high``."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max(step for step in steps if step <= low)
    last = min(step for step in steps if step >= high)
    return [step for step in steps if first <= step <= last]


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _apart(ends: Sequence[tuple[float, float, int]], gap: float) -> list[tuple[float, float, int]]:
    """The same places, moved down where two labels of lines that end at the same batch would overlap."""
    placed: list[tuple[float, float, int]] = []
    for x, y, context in sorted(ends):
        above = placed[-1] if placed and placed[-1][0] == x else None
        placed.append((x, y if above is None else max(y, above[1] + gap), context))
    return placed


def plot(speeds: Speeds, title: str) -> str:
    """One line per context over the batch. The speeds are above 0 and there is at least one."""
    batches, contexts = _axes(speeds)
    ticks = _ticks(min(speeds.values()), max(speeds.values()))
    width = math.log2(batches[-1] / batches[0]) or 1.0
    height = math.log(ticks[-1] / ticks[0]) or 1.0

    def x(batch: int) -> float:
        return LEFT + (RIGHT - LEFT) * math.log2(batch / batches[0]) / width

    def y(speed: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(speed / ticks[0]) / height

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" {_STYLE}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text((LEFT + RIGHT) / 2, 26, title, more=' font-size="14"'),
    ]
    for tick in ticks:
        parts += [_line(LEFT, y(tick), RIGHT, y(tick)), _text(LEFT - 8, y(tick) + 4, f"{tick:,g}", "end")]
    for batch in batches:
        parts += [_line(x(batch), TOP, x(batch), BOTTOM), _text(x(batch), BOTTOM + 18, str(batch))]
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 42, "batch (requests that decode at once)"))
    middle = (TOP + BOTTOM) / 2
    parts.append(_text(18, middle, "tokens per second", more=f' transform="rotate(-90 18 {middle:.1f})"'))
    colours = {context: COLOURS[place % len(COLOURS)] for place, context in enumerate(contexts)}
    ends = []
    for context in contexts:
        points = [(x(batch), y(speeds[batch, context])) for batch in batches if (batch, context) in speeds]
        colour = colours[context]
        joined = " ".join(f"{one:.1f},{other:.1f}" for one, other in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{one:.1f}" cy="{other:.1f}" r="3" fill="{colour}"/>' for one, other in points]
        ends.append((*points[-1], context))
    for right, label, context in _apart(ends, 16):
        parts.append(_text(right + 10, label + 4, f"context {context:,}", "start", f' style="fill:{colours[context]}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"

"""A picture of a graph as SVG: data flows downwards, weights stand at the left, what a step brings at the right."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from enginebay.graph._layers import Box, Picture
from enginebay.graph._layout import Extent, Layout, lay_out

_CHAR: Final = 7.8  # pixels that a character of the font takes, about
_SMALL: Final = 5.8
_MARGIN: Final = 28.0
_HEAD: Final = 84.0
_BESIDE: Final = 22.0  # between an operator and what stands beside it
_STACK: Final = 6.0
_HEIGHTS: Final = {"operator": 42.0, "fused": 42.0, "flow": 30.0, "weight": 34.0, "input": 34.0, "cache": 34.0}
_WORDS: Final = {
    "fused": "fused operator",
    "operator": "operator of torch",
    "weight": "weights",
    "input": "input of the step",
    "cache": "KV cache",
    "flow": "in and out",
}
_TIP: Final = """<defs>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0.5 L7.5 4 L0 7.5 z" style="fill:#64748b;stroke:none"/>
</marker></defs>"""
_STYLE: Final = """
svg { background: #ffffff; }
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1e293b;
  text-anchor: middle; }
.title { font-size: 17px; font-weight: 600; text-anchor: start; }
.legend { font-size: 11px; text-anchor: start; fill: #475569; }
.label { font-size: 12.5px; font-weight: 600; }
.detail { font-size: 10.5px; fill: #64748b; }
.side { font-size: 11px; }
rect { stroke-width: 1.2; }
.operator { fill: #f8fafc; stroke: #94a3b8; }
.fused { fill: #4f46e5; stroke: #3730a3; }
text.on-fused { fill: #ffffff; } text.detail.on-fused { fill: #c7d2fe; }
.flow { fill: #e2e8f0; stroke: #e2e8f0; }
.weight { fill: #fef3c7; stroke: #f59e0b; }
.input { fill: #dcfce7; stroke: #22c55e; }
.cache { fill: #cffafe; stroke: #06b6d4; }
path { fill: none; stroke: #64748b; stroke-width: 1.6; }
path.beside { stroke: #cbd5e1; stroke-width: 1.2; }
"""


def svg_text(picture: Picture, heading: str) -> str:
    """The picture as a file that a browser shows; whatever comes from elsewhere is text, and stays text."""
    extents = {name: _extent(picture, name) for name in picture.boxes}
    layout = lay_out(extents, picture.edges)
    title = f"{heading}: {picture.title}"
    kinds = _kinds(picture)
    width = max(layout.width, _CHAR * 1.3 * len(title), _legend_width(kinds)) + 2 * _MARGIN
    height = layout.height + _HEAD + _MARGIN
    shift = (width - 2 * _MARGIN - layout.width) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"',
        f'width="{width:.0f}" height="{height:.0f}">',
        f"<title>{_text(title)}</title>",
        f"<style>{_STYLE}</style>",
        _TIP,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text class="title" x="{_MARGIN}" y="34">{_text(title)}</text>',
        *_legend(kinds),
        f'<g transform="translate({_MARGIN + shift:.1f} {_HEAD:.1f})">',
        *_edges(picture, layout),
        *(line for name in picture.boxes for line in _with_sides(picture, name, layout)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _extent(picture: Picture, name: str) -> Extent:
    box = picture.boxes[name]
    half = _width(box) / 2
    left, right = picture.left.get(name, []), picture.right.get(name, [])
    return Extent(
        left=half + (_BESIDE + max(map(_width, left)) if left else 0),
        right=half + (_BESIDE + max(map(_width, right)) if right else 0),
        height=max(_HEIGHTS[box.kind], _stack(left), _stack(right)),
    )


def _stack(boxes: Sequence[Box]) -> float:
    return sum(_HEIGHTS[box.kind] + _STACK for box in boxes) - _STACK if boxes else 0.0


def _width(box: Box) -> float:
    label, detail = _short(box.label), _short(box.detail)
    char = _CHAR if box.kind in ("operator", "fused") else 6.2
    least = 84.0 if box.kind in ("operator", "fused") else 40.0
    return max(least, len(label) * char + 22, len(detail) * _SMALL + 20)


def _with_sides(picture: Picture, name: str, layout: Layout) -> Iterator[str]:
    x, y, box = layout.x[name], layout.y[name], picture.boxes[name]
    half = _width(box) / 2
    for sign, boxes in ((-1, picture.left.get(name, [])), (1, picture.right.get(name, []))):
        top = y - _stack(boxes) / 2
        for one in boxes:
            middle = top + _HEIGHTS[one.kind] / 2
            inner, end = x + sign * (half + _BESIDE), x + sign * half
            bend = (inner + end) / 2
            curve = f"C{bend:.1f} {middle:.1f} {bend:.1f} {y:.1f} {end:.1f} {y:.1f}"
            yield f'<path class="beside" d="M{inner:.1f} {middle:.1f} {curve}"/>'
            yield from _box(one, inner + sign * _width(one) / 2, middle)
            top += _HEIGHTS[one.kind] + _STACK
    yield from _box(box, x, y)


def _box(box: Box, x: float, y: float) -> Iterator[str]:
    width, height = _width(box), _HEIGHTS[box.kind]
    on = " on-fused" if box.kind == "fused" else ""
    label = "label" if box.kind in ("operator", "fused") else "side"
    yield "<g>" + (f"<title>{_text(box.tip)}</title>" if box.tip else "")
    yield (
        f'<rect class="{box.kind}" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{15 if box.kind == "flow" else 7}"/>'
    )
    up = 3 if box.detail and box.kind != "flow" else -4
    yield f'<text class="{label}{on}" x="{x:.1f}" y="{y - up:.1f}">{_text(_short(box.label))}</text>'
    if box.detail and box.kind != "flow":
        yield f'<text class="detail{on}" x="{x:.1f}" y="{y + 12:.1f}">{_text(_short(box.detail))}</text>'
    yield "</g>"


def _edges(picture: Picture, layout: Layout) -> Iterator[str]:
    for source, target in dict.fromkeys(picture.edges):
        start = (layout.x[source], layout.y[source] + _HEIGHTS[picture.boxes[source].kind] / 2)
        end = (layout.x[target], layout.y[target] - _HEIGHTS[picture.boxes[target].kind] / 2 - 2)
        rows = [(start[0], start[1], start[1]), *layout.bends[source, target], (end[0], end[1], end[1])]
        path = [f"M{start[0]:.1f} {start[1]:.1f}"]
        for (x0, _, y0), (x1, y1, bottom) in pairwise(rows):
            middle = (y0 + y1) / 2
            path.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f} V{bottom:.1f}")
        yield f'<path d="{" ".join(path)}" marker-end="url(#tip)"/>'


def _kinds(picture: Picture) -> list[str]:
    sides: Iterable[Mapping[str, list[Box]]] = (picture.left, picture.right)
    used = {box.kind for box in picture.boxes.values()}
    used |= {box.kind for side in sides for boxes in side.values() for box in boxes}
    return [kind for kind in _WORDS if kind in used]


def _legend_width(kinds: Sequence[str]) -> float:
    return sum(34 + 6 * len(_WORDS[kind]) for kind in kinds)


def _legend(kinds: Sequence[str]) -> Iterator[str]:
    x = _MARGIN
    for kind in kinds:
        yield f'<rect class="{kind}" x="{x:.0f}" y="50" width="14" height="14" rx="4"/>'
        yield f'<text class="legend" x="{x + 19:.0f}" y="61">{_WORDS[kind]}</text>'
        x += 34 + 6 * len(_WORDS[kind])


def _short(text: str, limit: int = 44) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(text: str) -> str:
    """Escaped, and without what an XML file may not hold."""
    return escape("".join(c if unicodedata.category(c)[0] != "C" else "?" for c in text))

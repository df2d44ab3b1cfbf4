"""What each layer's attention works on, as the probe saw it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["LayerShape", "kv_words"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer's attention works on. ``key_width`` and ``value_width``: numbers of one head; ``window``: tokens
    that a token sees, its own included; None: all."""

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    window: int | None

    @property
    def numbers(self) -> int:
        """How many numbers of the cache one token takes."""
        return self.kv_heads * (self.key_width + self.value_width)


def kv_words(shapes: tuple[LayerShape, ...]) -> str:
    """What the cache holds, for people: "30 layers of 3 KV heads, k 64, v 64; window 512 in 25 of 30 layers"."""
    counted = Counter(f"{_some(s.kv_heads, 'KV head')}, k {s.key_width}, v {s.value_width}" for s in shapes)
    windows = Counter(s.window for s in shapes if s.window is not None)
    parts = [f"{_some(count, 'layer')} of {what}" for what, count in counted.items()]
    parts += [f"window {window} in {count} of {len(shapes)} layers" for window, count in windows.items()]
    return "; ".join(parts)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

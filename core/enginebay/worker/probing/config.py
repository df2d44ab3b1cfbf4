"""Whether what the probe saw is what config.json says: what transformers reads elsewhere by a name counts there too."""

from __future__ import annotations

from typing import Any

from enginebay.errors import ModelError
from enginebay.worker.probing.families import ROPE_TYPES
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["check_kept", "check_ropes", "check_windows"]


def check_ropes(model: Any) -> None:
    """Frequencies that follow the length of a batch are right for none of its requests."""
    for name, module in model.named_modules():
        named = getattr(module, "rope_type", None)
        for rope in named.values() if isinstance(named, dict) else [named]:
            if rope is not None and rope not in ROPE_TYPES:
                raise ModelError(f"{name} has rope type {rope!r}; run exactly are {', '.join(ROPE_TYPES)}")


def check_windows(config: Any, seen: tuple[LayerShape, ...], layers: range) -> None:
    """Where config.json says the kind of each layer, the windows are those: a class that does not read it ignores it.

    Raises ``ModelError`` for the first layer that sees more or less than the config says.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return
    num_layers = int(config.num_hidden_layers)
    if len(kinds) != num_layers:
        raise ModelError(f"config.json has layer_types for {len(kinds)} layers, and the model has {num_layers}")
    for layer, shape in zip(layers, seen, strict=True):
        kind = kinds[layer]
        said = getattr(config, "sliding_window", None) if kind == "sliding_attention" else None
        if shape.window != said or (kind == "sliding_attention" and said is None):
            raise ModelError(
                f"layer {layer} attends with a window of {shape.window}, and config.json has it as '{kind}' "
                f"with {said}: it cannot be run exactly"
            )


def check_kept(config: Any, seen: tuple[LayerShape, ...], layers: range, length: int | None) -> None:
    """What transformers' own cache keeps is what the layers see: it cuts off by names in config.json, read or not.

    Raises ``ModelError`` for the first layer of which the cache would keep fewer tokens than its mask shows.
    """
    from transformers import DynamicCache

    caches = DynamicCache(config=config).layers
    for layer, shape in zip(layers, seen, strict=True):
        if layer >= len(caches):
            return
        kept = caches[layer]
        window = getattr(kept, "sliding_window", None)
        if window is not None and window < (shape.window or length or window + 1):
            raise ModelError(
                f"layer {layer} sees {'all tokens' if shape.window is None else f'{shape.window} tokens'}, and "
                f"transformers' cache keeps {window} of them, as config.json says: it cannot be run exactly"
            )

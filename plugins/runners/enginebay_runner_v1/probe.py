"""The probe at load: one tiny forward that looks at what really reaches attention, instead of trusting config names.

Each layer must call attention exactly once, in order, with shapes and options that the paged function serves. What it
saw is also what the KV cache is made for: heads, width and window of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.messages import KVCacheGroup, KVCacheSpec
from enginebay.models import one_line
from enginebay_runner_v1.attention import causal_attention

__all__ = ["LayerShape", "attention_modules", "kv_spec", "probe"]

_SERVED = frozenset({"scaling", "sliding_window", "dropout"})
_HARMLESS = frozenset({"position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache"})
"""Options that arrive and say nothing that the layout does not say."""
_TOKENS = 3
_MAX_DETAIL = 400


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer's attention works on. ``window``: tokens that a token sees, its own included; None: all."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None

    @property
    def cached(self) -> tuple[int, int]:
        """What decides the cache's shape: KV heads, and the width of each."""
        return self.kv_heads, self.head_dim


@dataclass(slots=True)
class _Recorder:
    """Bound on one attention module during the probe."""

    layer: int
    calls: list[int]
    shapes: dict[int, LayerShape] = field(default_factory=dict)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Check, record, and attend without a cache."""
        self.calls.append(self.layer)
        if mask is not None:
            raise ModelError(f"layer {self.layer}: transformers builds a mask, which paged attention ignores")
        odd = sorted(k for k, v in options.items() if k not in _SERVED | _HARMLESS and v is not None)
        if odd:
            raise ModelError(f"layer {self.layer}: attention is given {', '.join(odd)}, unknown to runner v1")
        if options.get("scaling") is None or options.get("dropout"):
            raise ModelError(f"layer {self.layer}: attention is called without a scale, or with dropout")
        (_, heads, tokens, width), kv_heads = query.shape, key.shape[1]
        if tokens != _TOKENS or key.shape != value.shape or key.shape[2:] != (tokens, width) or heads % kv_heads:
            raise ModelError(
                f"layer {self.layer}: attention works on query {list(query.shape)}, key {list(key.shape)}, "
                f"value {list(value.shape)}, which runner v1 has no cache for"
            )
        window = options.get("sliding_window")
        if window is not None and (type(window) is not int or window < 1):
            raise ModelError(
                f"layer {self.layer}: sliding_window is {window!r}, and a token sees at least itself: "
                "1 or more, or null"
            )
        self.shapes[self.layer] = LayerShape(heads, kv_heads, width, window)
        out = causal_attention(query[0], key[0], value[0], None, float(options["scaling"]))
        return out.transpose(0, 1).unsqueeze(0)


def attention_modules(model: Any) -> list[Any]:
    """The modules that call attention, by layer. Raises ``ModelError`` when they are not one per layer."""
    found = [m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")]
    layers = int(model.config.num_hidden_layers)
    if not found or [m.layer_idx for m in found] != list(range(layers)):
        raise ModelError(
            f"{type(model).__name__} has {len(found)} attention modules for {layers} layers: not one in each"
        )
    return found


def probe(model: Any) -> tuple[LayerShape, ...]:
    """Run ``_TOKENS`` tokens through the model; what each layer's attention works on, by layer."""
    modules = attention_modules(model)
    calls: list[int] = []
    shapes: dict[int, LayerShape] = {}
    for layer, module in enumerate(modules):
        module.eb = _Recorder(layer, calls, shapes)
    positions = torch.arange(_TOKENS, device=model.device).unsqueeze(0)
    ids = positions % model.config.vocab_size
    try:
        with torch.inference_mode():
            model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1)
    except (ModelError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a value of config.json that only shows when the model runs
        why = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", _MAX_DETAIL)
        raise ModelError(f"{type(model).__name__} does not run as config.json describes it: {why}") from error
    finally:
        for module in modules:
            del module.eb
    if calls != list(range(len(modules))):
        raise ModelError(
            f"{type(model).__name__}: attention was called by layers {calls}, "
            f"instead of once by each of {len(modules)} in order; runner v1 cannot run it exactly"
        )
    unlike = [layer for layer, shape in shapes.items() if shape.cached != shapes[0].cached]
    if unlike:
        raise ModelError(
            f"layer {unlike[0]} caches {shapes[unlike[0]].cached} (KV heads, width), layer 0 {shapes[0].cached}; "
            "runner v1 has one shape for all layers"
        )
    seen = tuple(shapes[layer] for layer in range(len(modules)))
    _check_windows(model.config, seen)
    return seen


def _check_windows(config: Any, seen: tuple[LayerShape, ...]) -> None:
    """Where config.json says the kind of each layer, the windows are those: a class that does not read it ignores it.

    Raises ``ModelError`` for the first layer that sees more or less than the config says.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return
    if len(kinds) != len(seen):
        raise ModelError(f"config.json has layer_types for {len(kinds)} layers, and the model has {len(seen)}")
    for layer, (kind, shape) in enumerate(zip(kinds, seen, strict=True)):
        said = getattr(config, "sliding_window", None) if kind == "sliding_attention" else None
        if shape.window != said or (kind == "sliding_attention" and said is None):
            raise ModelError(
                f"layer {layer} attends with a window of {shape.window}, and config.json has it as '{kind}' "
                f"with {said}: it cannot be run exactly"
            )


def kv_spec(shapes: tuple[LayerShape, ...], block_size: int, element_size: int) -> KVCacheSpec:
    """The KV cache that these layers need; ``element_size`` is bytes of one number in the cache.

    One group: blocks behind a layer's window are kept, so a window is the attention's business alone.
    """
    first = shapes[0]
    numbers = len(shapes) * 2 * block_size * first.kv_heads * first.head_dim
    return KVCacheSpec(
        groups=(
            KVCacheGroup(
                layers=tuple(range(len(shapes))), block_size=block_size, bytes_per_block=numbers * element_size
            ),
        )
    )

"""The probe at load: two tiny forwards that look at what really reaches attention, instead of trusting config names.

Each layer must call attention exactly once, in order, with shapes, options and a mask rule that the paged function
serves; and whatever is not attention must treat each token by itself. Attention is answered with each token's own
value, so a token knows of no other: when the second forward has two tokens of the first in other places, among others,
their queries, keys, values and logits must be the same. A state, a convolution, or frequencies made for the whole
batch show themselves.

What the probe saw is also what the KV cache is made for: heads, widths and window of each layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.messages import KVCacheGroup, KVCacheSpec
from enginebay.models import one_line
from enginebay_runner_v1.attention import PROBING, register_probe
from enginebay_runner_v1.families import ROPE_TYPES
from enginebay_runner_v1.masks import MaskRules

__all__ = ["LayerShape", "attention_modules", "kv_spec", "kv_words", "probe"]

_SERVED = frozenset({"scaling", "sliding_window", "dropout", "softcap", "s_aux"})
_HARMLESS = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "cache"}
)
"""Options that arrive and say nothing that the layout does not say."""
_TOKENS = 4
_FIRST, _SECOND = [0, 1, 2, 3], [2, 5, 0, 4]
"""The positions of the tokens of each forward."""
_THEN, _NOW = [0, 2], [2, 0]
"""Where the tokens of both stand in the first and in the second."""
_TOLERANCE = {torch.float32: 1e-3}
_HALF_TOLERANCE = 5e-2
"""How far a token may be off, in shares of the largest value: rows are summed in another order."""
_MAX_DETAIL = 400


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


@dataclass(slots=True)
class _Recorder:
    """Bound on one attention module during the probe."""

    layer: int
    calls: list[int]
    rules: MaskRules
    length: int | None
    groups: int | None
    shape: LayerShape | None = None
    seen: list[torch.Tensor] = field(default_factory=list)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Check and record in the first forward, compare in the second; each token gets its own value back."""
        again = self.layer in self.calls
        self.calls.append(self.layer)
        if again:
            pass  # told of after the forward, with all calls in sight
        elif not self.seen:
            self.shape = self._look(query, key, value, mask, options)
            self.seen = [query, key, value]
        elif not all(_same(now, then, 2) for now, then in zip((query, key, value), self.seen, strict=True)):
            raise ModelError(
                f"layer {self.layer}: what reaches attention depends on more than the token, its position and "
                "attention before it: a state, a convolution, or frequencies of the whole batch"
            )
        return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2)

    def _look(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> LayerShape:
        odd = sorted(k for k, v in options.items() if k not in _SERVED | _HARMLESS and v is not None)
        if odd:
            raise ModelError(f"layer {self.layer}: attention is given {', '.join(odd)}, unknown to runner v1")
        if options.get("scaling") is None or options.get("dropout"):
            raise ModelError(f"layer {self.layer}: attention is called without a scale, or with dropout")
        (_, heads, tokens, width), kv_heads = query.shape, key.shape[1]
        odd_shape = key.shape != (1, kv_heads, tokens, width) or value.shape[:3] != key.shape[:3]
        if odd_shape or tokens != _TOKENS or heads % kv_heads:
            raise ModelError(self._shapeless(query, key, value))
        if self.groups is not None and kv_heads * self.groups != heads:  # there transformers repeats keys by it
            raise ModelError(
                f"layer {self.layer}: {heads} heads attend to {kv_heads} KV heads, and num_key_value_heads in "
                f"config.json has each repeated {self.groups} times: transformers cannot run it"
            )
        self._check_scores(options, heads)
        try:
            window = self.rules.window(mask, self.length)
        except ModelError as error:
            raise ModelError(f"layer {self.layer} {error}") from error
        if options.get("sliding_window") not in (None, window):
            raise ModelError(
                f"layer {self.layer}: attention is given a window of {options['sliding_window']}, and its mask has "
                f"{window}: it cannot be run exactly"
            )
        return LayerShape(heads, kv_heads, width, value.shape[3], window)

    def _shapeless(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str:
        return (
            f"layer {self.layer}: attention works on query {list(query.shape)}, key {list(key.shape)}, "
            f"value {list(value.shape)}, which runner v1 has no cache for"
        )

    def _check_scores(self, options: Mapping[str, Any], heads: int) -> None:
        softcap, sinks = options.get("softcap"), options.get("s_aux")
        if softcap is not None and not (isinstance(softcap, int | float) and softcap > 0):
            raise ModelError(f"layer {self.layer}: softcap is {softcap!r}, and scores are capped at more than 0")
        if sinks is not None and (not isinstance(sinks, torch.Tensor) or sinks.shape != (heads,)):
            raise ModelError(f"layer {self.layer}: s_aux is no tensor of {heads} sinks, one for each head")


def _same(now: torch.Tensor, then: torch.Tensor, dim: int) -> bool:
    """The tokens of both forwards are the same, ``dim`` being that of tokens; so is the NaN of damaged weights."""
    if now.shape != then.shape:
        return False
    now = now.index_select(dim, torch.tensor(_NOW, device=now.device))
    then = then.index_select(dim, torch.tensor(_THEN, device=then.device))
    largest = float(torch.nan_to_num(then, posinf=0.0, neginf=0.0).abs().max())
    tolerance = _TOLERANCE.get(then.dtype, _HALF_TOLERANCE) * largest
    return torch.allclose(now, then, rtol=0.0, atol=tolerance, equal_nan=True)


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
    """Run ``_TOKENS`` tokens through the model twice; what each layer's attention works on, by layer.

    Raises ``ModelError`` for a model that paged attention would not run exactly.
    """
    _check_ropes(model)
    modules = attention_modules(model)
    calls: list[int] = []
    rules = MaskRules()
    length = getattr(model.config, "max_position_embeddings", None)
    for layer, module in enumerate(modules):
        module.eb = _Recorder(layer, calls, rules, length, getattr(module, "num_key_value_groups", None))
    recorders = [module.eb for module in modules]
    name = model.config._attn_implementation
    register_probe(rules.add)
    try:
        model.config._attn_implementation = PROBING
        first = _forward(model, _FIRST)
        _check_calls(model, calls, len(modules))
        calls.clear()
        second = _forward(model, _SECOND)
        _check_calls(model, calls, len(modules))
    finally:
        model.config._attn_implementation = name
        for module in modules:
            del module.eb
    if not _same(second, first, 1):
        raise ModelError(
            f"{type(model).__name__}: a token's logits depend on its neighbours by another way than attention; "
            "runner v1 cannot run it exactly"
        )
    shapes = tuple(recorder.shape for recorder in recorders if recorder.shape is not None)
    assert len(shapes) == len(modules), "a layer that was called has no shape"
    _check_windows(model.config, shapes)
    _check_kept(model.config, shapes, length)
    return shapes


def _forward(model: Any, at: list[int]) -> torch.Tensor:
    """Logits ``[1, _TOKENS, vocab]`` of the tokens at these positions."""
    positions = torch.tensor([at], device=model.device)
    ids = (positions + 1) % model.config.vocab_size
    keep = torch.arange(_TOKENS, device=model.device)
    try:
        with torch.inference_mode():
            output = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep)
        logits: torch.Tensor = output.logits
    except (ModelError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a value of config.json that only shows when the model runs
        why = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", _MAX_DETAIL)
        raise ModelError(f"{type(model).__name__} does not run as config.json describes it: {why}") from error
    return logits


def _check_calls(model: Any, calls: list[int], layers: int) -> None:
    if calls != list(range(layers)):
        raise ModelError(
            f"{type(model).__name__}: attention was called by layers {calls}, "
            f"instead of once by each of {layers} in order; runner v1 cannot run it exactly"
        )


def _check_ropes(model: Any) -> None:
    """Frequencies that follow the length of a batch are right for none of its requests."""
    for name, module in model.named_modules():
        named = getattr(module, "rope_type", None)
        for rope in named.values() if isinstance(named, dict) else [named]:
            if rope is not None and rope not in ROPE_TYPES:
                raise ModelError(f"{name} has rope type {rope!r}; run exactly are {', '.join(ROPE_TYPES)}")


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


def _check_kept(config: Any, seen: tuple[LayerShape, ...], length: int | None) -> None:
    """What transformers' own cache keeps is what the layers see: it cuts off by names in config.json, read or not.

    Raises ``ModelError`` for the first layer of which the cache would keep fewer tokens than its mask shows.
    """
    from transformers import DynamicCache

    for layer, (kept, shape) in enumerate(zip(DynamicCache(config=config).layers, seen, strict=False)):
        window = getattr(kept, "sliding_window", None)
        if window is not None and window < (shape.window or length or window + 1):
            raise ModelError(
                f"layer {layer} sees {'all tokens' if shape.window is None else f'{shape.window} tokens'}, and "
                f"transformers' cache keeps {window} of them, as config.json says: it cannot be run exactly"
            )


def kv_spec(shapes: tuple[LayerShape, ...], block_size: int, element_size: int) -> KVCacheSpec:
    """The KV cache that these layers need; ``element_size`` is bytes of one number in the cache.

    One group: blocks behind a layer's window are kept, so a window is the attention's business alone.
    """
    numbers = block_size * sum(shape.numbers for shape in shapes)
    return KVCacheSpec(
        groups=(
            KVCacheGroup(
                layers=tuple(range(len(shapes))), block_size=block_size, bytes_per_block=numbers * element_size
            ),
        )
    )


def kv_words(shapes: tuple[LayerShape, ...]) -> str:
    """What the cache holds, for people: "30 layers of 3 KV heads, k 64, v 64; window 512 in 25 of 30 layers"."""
    counted = Counter(f"{_some(s.kv_heads, 'KV head')}, k {s.key_width}, v {s.value_width}" for s in shapes)
    windows = Counter(s.window for s in shapes if s.window is not None)
    parts = [f"{_some(count, 'layer')} of {what}" for what, count in counted.items()]
    parts += [f"window {window} in {count} of {len(shapes)} layers" for window, count in windows.items()]
    return "; ".join(parts)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

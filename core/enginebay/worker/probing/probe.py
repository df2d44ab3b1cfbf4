"""The probe at load: two tiny forwards that look at what really reaches attention, instead of trusting config names.

Each layer must call attention exactly once, in order, with shapes, options and a mask rule that the paged function
serves; and whatever is not attention must treat each token by itself. Attention is answered with each token's own
value, so a token knows of no other: when the second forward has two tokens of the first in other places, among others,
their queries, keys, values and logits must be the same. A state, a convolution, or frequencies made for the whole
batch show themselves.

What the probe saw is also what the KV cache is made for: heads, widths and window of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from enginebay.errors import EnginebayError, ModelError
from enginebay.models import one_line
from enginebay.worker.probing.config import check_kept, check_ropes, check_windows
from enginebay.worker.probing.interface import PROBING, register_probe
from enginebay.worker.probing.masks import MaskRules
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["Run", "attention_modules", "probe", "run_whole"]

Run = Callable[[Any, Mapping[str, Any], torch.Tensor], torch.Tensor]
"""One forward of a model with these inputs, for the logits of these tokens; what leaves this rank's layers or head."""

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
            raise ModelError(f"layer {self.layer}: attention is given {', '.join(odd)}, unknown to paged attention")
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
            f"value {list(value.shape)}, which no paged cache is made for"
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


def attention_modules(model: Any, layers: range | None = None) -> list[Any]:
    """The modules that call attention in these layers (None: all). Raises ``ModelError`` when they are not one each."""
    found = [m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")]
    wanted = range(int(model.config.num_hidden_layers)) if layers is None else layers
    if not found or [m.layer_idx for m in found] != list(wanted):
        raise ModelError(
            f"{type(model).__name__} has {len(found)} attention modules for {len(wanted)} layers: not one in each"
        )
    return found


def run_whole(model: Any, inputs: Mapping[str, Any], keep: torch.Tensor) -> torch.Tensor:
    """One forward of a model that is whole: logits ``[1, len(keep), vocab]``."""
    logits: torch.Tensor = model(**inputs, logits_to_keep=keep).logits
    return logits


def probe(model: Any, run: Run = run_whole, layers: range | None = None) -> tuple[LayerShape, ...]:
    """Run ``_TOKENS`` tokens through the model twice; what each layer's attention works on, by layer.

    ``run`` makes a forward of a model of which this rank has a part, ``layers`` are those that it has (None: all).

    Raises ``ModelError`` for a model that paged attention would not run exactly.
    """
    check_ropes(model)
    layers = range(int(model.config.num_hidden_layers)) if layers is None else layers
    modules = attention_modules(model, layers)
    calls: list[int] = []
    rules = MaskRules()
    length = getattr(model.config, "max_position_embeddings", None)
    for layer, module in zip(layers, modules, strict=True):
        module.eb = _Recorder(layer, calls, rules, length, getattr(module, "num_key_value_groups", None))
    recorders = [module.eb for module in modules]
    name = model.config._attn_implementation
    register_probe(rules.add)
    try:
        model.config._attn_implementation = PROBING
        first = _forward(model, _FIRST, run)
        _check_calls(model, calls, layers)
        calls.clear()
        second = _forward(model, _SECOND, run)
        _check_calls(model, calls, layers)
    finally:
        model.config._attn_implementation = name
        for module in modules:
            del module.eb
    if not _same(second, first, 1):
        raise ModelError(
            f"{type(model).__name__}: a token's logits depend on its neighbours by another way than attention; "
            "it cannot be run exactly"
        )
    shapes = tuple(recorder.shape for recorder in recorders if recorder.shape is not None)
    assert len(shapes) == len(modules), "a layer that was called has no shape"
    check_windows(model.config, shapes, layers)
    check_kept(model.config, shapes, layers, length)
    return shapes


def _forward(model: Any, at: list[int], run: Run) -> torch.Tensor:
    """``[1, _TOKENS, …]``: what leaves this rank for the tokens at these positions, logits where it has the head."""
    positions = torch.tensor([at], device=model.device)
    ids = (positions + 1) % model.config.vocab_size
    keep = torch.arange(_TOKENS, device=model.device)
    try:
        with torch.inference_mode():
            return run(model, {"input_ids": ids, "position_ids": positions, "use_cache": False}, keep)
    except (EnginebayError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a value of config.json that only shows when the model runs
        why = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", _MAX_DETAIL)
        raise ModelError(f"{type(model).__name__} does not run as config.json describes it: {why}") from error


def _check_calls(model: Any, calls: list[int], layers: range) -> None:
    if calls != list(layers):
        raise ModelError(
            f"{type(model).__name__}: attention was called by layers {calls}, "
            f"instead of once by each of {len(layers)} in order; it cannot be run exactly"
        )

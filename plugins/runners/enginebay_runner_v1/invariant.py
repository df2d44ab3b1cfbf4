"""``[engine] batch_invariant``: makes a loaded model's steps independent of the batch, by rules found on this machine.

Found at load: what the model calls (``invariant_audit``), and how each product and curve must be run here. At warm-up
the whole model is tried. Whatever cannot be made independent is refused by name; nothing is ever assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from enginebay.errors import CapabilityError
from enginebay.worker.probing.probe import Run, run_whole
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v1.invariant_attention import tile_size
from enginebay_runner_v1.invariant_audit import Audit, Curve, Key, audit, curve_of, matrix_call, weight_key
from enginebay_runner_v1.invariant_products import (
    elementwise,
    elementwise_is_safe,
    find_attention_products,
    find_product,
    product,
    relaid,
)
from enginebay_runner_v1.invariant_rules import NoRule, Rule, in_words

__all__ = ["Invariance", "make_invariant"]


@dataclass(frozen=True)
class Invariance:
    """What the runner keeps: the rule of attention's products, its tile in positions, and the other rules in words."""

    attention: Rule
    tile: int
    words: str


def make_invariant(
    model: Any, attention: list[Any], shapes: Iterable[LayerShape], block_size: int, run: Run = run_whole
) -> Invariance:
    """Change the model's modules so that a row's result is its own. Raises ``CapabilityError`` when that cannot be.

    ``run`` makes a forward of a model of which this rank has a part.
    """
    model.config._experts_implementation = "eager"  # one product for each expert, where the model has experts
    seen = audit(model, attention, run)
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    weights = {**{weight_key(linear.weight): linear.weight for linear in linears}, **seen.weights}
    rules = {key: _rule(model, weight, seen) for key, weight in weights.items()}
    curves = {curve for curve, (function, example) in seen.curves.items() if not elementwise_is_safe(function, example)}
    for curve in sorted(curves, key=lambda curve: curve.name):
        function, example = seen.curves[curve]
        if not elementwise_is_safe(lambda numbers, function=function: elementwise(function, numbers), example):
            raise _refusal(f"{curve.name} of {_name(curve.dtype)} gives other bits at other places")
    for linear in linears:
        _replace_linear(linear, rules[weight_key(linear.weight)])
    _wrap_others(model, seen, rules, curves)
    tile = tile_size(block_size)
    widths = [(shape.key_width, shape.value_width) for shape in shapes]
    try:
        products = find_attention_products(tile, widths, model.device)
    except NoRule as none:
        raise _refusal(f"attention over tiles of {tile} positions: {none}") from none
    return Invariance(products, tile, f"{_name(model.dtype)}: {in_words(list(rules.values()))}")


def _refusal(reason: str) -> CapabilityError:
    return CapabilityError(
        f"[engine] batch_invariant cannot be kept on this machine: {reason} (threads: {torch.get_num_threads()}). "
        "Try another [worker] threads or [model] dtype, or turn the mode off."
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rule(model: Any, weight: torch.Tensor, seen: Audit) -> Rule:
    key = weight_key(weight)
    movable = all(isinstance(module, torch.nn.Linear) for module, keys in seen.products_of.items() if key in keys)
    weights = list(_lying_differently(model, key)) or [weight]
    try:
        return find_product(weights, movable=movable)
    except NoRule as none:
        shape = " x ".join(map(str, key[0]))
        raise _refusal(f"a product with a weight of {shape} in {_name(key[2])}: {none}") from none


def _lying_differently(model: Any, key: Key) -> Iterable[torch.Tensor]:
    """The model's weights of this key, one for each way to lie in memory: a file's tensors begin where they may."""
    found: dict[int, torch.Tensor] = {}
    for parameter in model.parameters():
        for matrix in [parameter] if parameter.dim() == 2 else parameter if parameter.dim() == 3 else []:
            for weight in (matrix, matrix.t()):
                if weight_key(weight) == key:
                    found.setdefault(weight.data_ptr() % 64, weight)
    return found.values()


def _replace_linear(module: torch.nn.Linear, rule: Rule) -> None:
    """Give the module a forward of its own; the class's stays as it is."""
    if rule.way == "relaid":
        module.weight = torch.nn.Parameter(relaid(module.weight), requires_grad=False)
    module.forward = _linear(rule, module.weight, module.bias)  # type: ignore[assignment,method-assign]  # of this one alone


def _wrap_others(model: Any, seen: Audit, rules: Mapping[Key, Rule], curves: set[Curve]) -> None:
    """All modules of a class of which one called something itself: of experts only those chosen were seen."""
    called: dict[type, set[Curve]] = {}
    for module, own in seen.curves_of.items():
        if own & curves:
            called.setdefault(type(module), set()).update(own & curves)
    for module in seen.products_of:
        if not isinstance(module, torch.nn.Linear):
            called.setdefault(type(module), set())
    for module in model.modules():
        if type(module) in called:
            module.forward = _within(module.forward, _Independent(rules, called[type(module)]))


def _linear(rule: Rule, weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # nn.Linear's own name for it
        rows = product(rule, input.reshape(-1, input.shape[-1]), weight)
        out = rows.view(*input.shape[:-1], rows.shape[-1])  # a step in which nobody draws has a head without rows
        return out if bias is None else out.add_(bias)

    return forward


def _within(forward: Callable[..., Any], mode: TorchFunctionMode) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        with mode:
            return forward(*args, **options)

    return wrapped


class _Independent(TorchFunctionMode):
    """Runs the products and curves of one module's code by their rules."""

    def __init__(self, rules: Mapping[Key, Rule], curves: set[Curve]) -> None:
        super().__init__()
        self.rules = rules
        self.curves = curves

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        call = matrix_call(func, args, options)
        if call is not None and (rule := self.rules.get(weight_key(call.weight))) is not None:
            return _linear(rule, call.weight, call.bias)(call.rows)
        if curve_of(func, args, options) in self.curves:
            return elementwise(func, *args, **options)
        return func(*args, **options)

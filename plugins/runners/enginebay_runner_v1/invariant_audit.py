"""What a model's own code calls whose bits could depend on the batch, and which module calls it, as seen in a run.

One small forward runs with every call of torch recorded, attention left out (``invariant_attention`` replaces it).
Sums, additions and the like treat each row, or each number, alone; matrix products and curves (silu, tanh …) do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from enginebay.errors import CapabilityError
from enginebay.worker.probing.probe import Run, run_whole

__all__ = ["Audit", "Curve", "MatrixCall", "audit", "matrix_call", "weight_key"]

_CURVES = frozenset(
    {
        *("silu", "gelu", "mish", "softplus", "elu", "selu", "celu", "hardswish", "sigmoid", "logsigmoid", "tanh"),
        *("exp", "expm1", "exp2", "log", "log1p", "log2", "erf", "cos", "sin", "rsqrt", "pow", "__pow__"),
    }
)
_MIXING = frozenset(
    {
        *("baddbmm", "einsum", "grouped_mm", "_grouped_mm", "addbmm", "conv1d", "conv2d", "tensordot", "inner"),
        *("scaled_dot_product_attention", "multi_head_attention_forward"),
        *("silu_", "sigmoid_", "tanh_", "exp_", "pow_", "rsqrt_"),
    }
)
"""Products of other kinds, and curves in place: nothing is known of them, and no allowed model is seen to need one."""
_TOKENS = 29
"""No model has a weight of this size: a factor that has it came from the tokens."""


@dataclass(frozen=True)
class MatrixCall:
    """One product of rows ``[..., K]`` with a weight ``[N, K]``, and what is added to it."""

    rows: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


Key = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def weight_key(weight: torch.Tensor) -> Key:
    """Weights with equal keys are multiplied alike: shape, stride, dtype."""
    return tuple(weight.shape), tuple(weight.stride()), weight.dtype


@dataclass(frozen=True)
class Curve:
    """A function of single numbers with the arguments it was called with, as a key."""

    name: str
    dtype: torch.dtype
    extra: str


def matrix_call(function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> MatrixCall | None:
    """The call as a product with a weight of two dimensions; None when it is none."""
    name = getattr(function, "__name__", "")
    if name == "linear":
        given = dict(zip(("input", "weight", "bias"), args, strict=False), **options)
        return MatrixCall(given["input"], given["weight"], given.get("bias"))
    if name == "addmm" and not options and args[2].dim() == 2:
        return MatrixCall(args[1], args[2].t(), args[0])
    if name in ("mm", "matmul", "__matmul__") and len(args) == 2 and args[1].dim() == 2:
        return MatrixCall(args[0], args[1].t(), None)
    return None


def curve_of(function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Curve | None:
    """The call as a curve; None when it is none."""
    name = getattr(function, "__name__", "")
    if name not in _CURVES or not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
        return None
    if any(isinstance(extra, torch.Tensor) for extra in args[1:]):
        return None
    return Curve(name, args[0].dtype, repr((args[1:], sorted(options.items()))))


@dataclass
class Audit:
    """What was seen: weights by key, curves with an example call, and the modules that call them by themselves."""

    weights: dict[Key, torch.Tensor] = field(default_factory=dict)
    curves: dict[Curve, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    products_of: dict[torch.nn.Module, set[Key]] = field(default_factory=dict)
    curves_of: dict[torch.nn.Module, set[Curve]] = field(default_factory=dict)


class _Recorder(TorchFunctionMode):
    def __init__(self, seen: Audit) -> None:
        super().__init__()
        self.seen = seen
        self.stack: list[torch.nn.Module] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if self.stack:
            self._record(func, args, options)
        return func(*args, **options)

    def _record(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        module = self.stack[-1]
        call, curve = matrix_call(func, args, options), curve_of(func, args, options)
        if call is not None and _TOKENS not in call.weight.shape:
            key = weight_key(call.weight)
            self.seen.weights.setdefault(key, call.weight)
            self.seen.products_of.setdefault(module, set()).add(key)
        elif curve is not None:
            rest = args[1:]
            self.seen.curves.setdefault(curve, (lambda numbers: func(numbers, *rest, **options), args[0]))
            self.seen.curves_of.setdefault(module, set()).add(curve)
        elif call is not None or _mixes(func, args):
            raise CapabilityError(
                f"[engine] batch_invariant: {type(module).__name__} calls {func.__name__}, whose bits may depend on "
                "the batch: turn the mode off, or choose another model."
            )


def _mixes(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether this is a product of another kind; with one term to each sum there is nothing to reorder."""
    name = getattr(func, "__name__", "")
    if name in ("matmul", "__matmul__", "bmm"):
        return bool(args[0].shape[-1] != 1)
    return name in _MIXING or (name in _CURVES and any(isinstance(extra, torch.Tensor) for extra in args[1:]))


class _Skipped:
    """Bound on an attention module: its value heads, repeated to as many as there are query heads."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, options: Mapping[str, Any]
    ) -> torch.Tensor:
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)


def _leave(stack: list[torch.nn.Module]) -> None:
    stack.pop()


@contextmanager
def _tracking(model: torch.nn.Module, stack: list[torch.nn.Module]) -> Iterator[None]:
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(lambda module, _args: stack.append(module)))
        handles.append(module.register_forward_hook(lambda _module, _args, _out: _leave(stack)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def audit(model: Any, attention: list[Any], run: Run = run_whole) -> Audit:
    """Run a few tokens through the model, of which this rank may have a part.

    Raises ``CapabilityError`` for a call that cannot be made independent.
    """
    seen = Audit()
    recorder = _Recorder(seen)
    for module in attention:
        module.eb = _Skipped()
    positions = torch.arange(_TOKENS, device=model.device).unsqueeze(0)
    try:
        with torch.inference_mode(), _tracking(model, recorder.stack), recorder:
            ids = positions % model.config.vocab_size
            run(model, {"input_ids": ids, "position_ids": positions, "use_cache": False}, positions[0])
    finally:
        for module in attention:
            del module.eb
    return seen

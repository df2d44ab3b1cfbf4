"""Which kind of device a worker drives, and in which precision: from the config, the runner and the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from enginebay.config import EngineConfig
from enginebay.errors import CapabilityError
from enginebay.interfaces import Device, RunnerPlugin
from enginebay.messages import StartPayload

_DTYPES: Final = ("float32", "bfloat16", "float16")


def choose_device(runner: RunnerPlugin[Any], wanted: str, make: Callable[[str], Device] | None) -> Device:
    """The device to drive, made by ``make``, else by the runner's own factory, else torch's; torch is imported then.

    ``wanted`` is ``[device] kind``. Raises ``CapabilityError`` when it does not fit the runner or the machine.
    """
    factory = make or runner.device
    if factory is None:
        from enginebay.worker.device import TorchDevice, current_accelerator

        factory, accelerator = TorchDevice, current_accelerator
    else:
        own = factory

        def accelerator() -> str | None:
            return first_available(runner.capabilities.devices, own)

    kind = choose_kind(wanted, runner=runner.name, supported=runner.capabilities.devices, accelerator=accelerator)
    device = factory(kind)
    reason = device.unavailable_reason()
    if reason is not None:
        raise CapabilityError(f"[device] kind {kind!r} cannot be used here: {reason}")
    return device


def choose_kind(
    wanted: str,
    *,
    runner: str,
    supported: Sequence[str],
    accelerator: Callable[[], str | None],
) -> str:
    """The device kind in force: the config's, or for "auto" the machine's accelerator if the runner supports it.

    ``accelerator`` answers the kind of accelerator that this machine has, or None; it is asked only when it matters.
    Raises ``CapabilityError``.
    """
    if wanted != "auto":
        if wanted not in supported:
            raise CapabilityError(
                f"runner {runner!r} does not compute on {wanted!r}; it can use: {', '.join(supported)}. "
                "Change [device] kind, or [runner] use"
            )
        return wanted
    if any(kind != "cpu" for kind in supported):
        found = accelerator()
        if found is not None and found in supported:
            return found
    if "cpu" in supported:
        return "cpu"
    raise CapabilityError(
        f"runner {runner!r} computes on {', '.join(supported)}, and this machine has none of them that works"
    )


def first_available(kinds: Sequence[str], make: Callable[[str], Device]) -> str | None:
    """The first kind other than "cpu" whose device, made by the runner's own factory, can be used here."""
    return next((kind for kind in kinds if kind != "cpu" and make(kind).unavailable_reason() is None), None)


def dtypes_in_force(payload: StartPayload, config: EngineConfig) -> tuple[str, str]:
    """(weights and activations, KV cache): as settled at assembly, else the config's, else the model's."""
    dtype = next(one for one in (payload.dtype, config.model.dtype, payload.model.dtype) if one != "auto")
    return dtype, next(one for one in (payload.cache_dtype, config.cache.dtype, dtype) if one != "auto")


def check_dtypes(device: Device, dtype: str, cache_dtype: str) -> None:
    """Refuse a precision that the device does not have, and say which it has."""
    for key, wanted in (("[model] dtype", dtype), ("[cache] dtype", cache_dtype)):
        if not device.supports_dtype(wanted):
            able = ", ".join(one for one in _DTYPES if device.supports_dtype(one))
            raise CapabilityError(
                f"{device.name()} does not compute in {wanted} ({key} in force); it can: {able or 'none of them'}"
            )

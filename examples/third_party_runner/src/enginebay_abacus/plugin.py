"""The light half: what enginebay imports when a config says ``[runner] use = "abacus"``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Device, ModelRunner, NoOptions, RunnerCapabilities, RunnerContext, RunnerPlugin


def _make(context: RunnerContext[NoOptions]) -> ModelRunner[NoOptions]:
    from enginebay_abacus.runner import Abacus

    return Abacus(context)


def _device(kind: str) -> Device:
    from enginebay.worker import HostDevice

    return HostDevice()


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[NoOptions]]:
    """Register ``abacus``. Its preference is below every real runner's: ``use = "auto"`` never takes it by accident."""
    return [
        RunnerPlugin(
            name="abacus",
            summary="Reckons tokens from the KV cache without a model, and checks every block that it touches.",
            factory=_make,
            capabilities=RunnerCapabilities(devices=("cpu",), features=frozenset({"n", "seed"})),
            device=_device,
            requires_modules={"numpy": "numpy"},
            preference=-1000,
        )
    ]

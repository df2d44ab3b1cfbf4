"""``TorchDevice``: on the CPU for real, and its CUDA lines against a torch that writes down what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from enginebay.errors import CapabilityError
from enginebay.worker.device import TorchDevice, current_accelerator


def test_cpu_never_touches_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"torch.accelerator.{name} was used on the CPU")

    monkeypatch.setattr(torch, "accelerator", Trap())
    device = TorchDevice("cpu")
    assert device.unavailable_reason() is None
    assert (device.count(), device.name(), device.torch_device) == (1, "cpu", torch.device("cpu"))
    device.set_current(0)
    with pytest.raises(CapabilityError, match="there is one cpu device, index 0, not 2"):
        device.set_current(2)
    device.touch_math_library()
    device.empty_cache()
    device.reset_peak()
    device.synchronize()
    memory = device.memory()
    assert 0 < memory.process < memory.total
    assert [device.supports_dtype(d) for d in ("float32", "bfloat16", "float16", "int8")] == [True, True, True, False]
    assert (device.collective_backend(), device.visible_env()) == ("gloo", "")


def test_seed_and_threads() -> None:
    device, threads = TorchDevice("cpu"), torch.get_num_threads()
    try:
        device.set_threads(1)
        assert torch.get_num_threads() == 1
        device.seed(7)
        first = torch.rand(3)
        device.seed(7)
        assert torch.equal(first, torch.rand(3))
    finally:
        torch.set_num_threads(threads)


class Recorder:
    """``torch.accelerator`` that writes down every call and answers from a table."""

    def __init__(self, **answers: Any) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if not hasattr(torch.accelerator, name):
            raise AttributeError(f"torch.accelerator has no {name}")

        def call(*arguments: Any) -> Any:
            self.log.append((name, *arguments))
            return self.answers.get(name)

        return call


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder(
        is_available=True,
        current_accelerator=SimpleNamespace(type="cuda"),
        device_count=2,
        get_memory_info=(70, 80),
        memory_reserved=9,
        memory_allocated=5,
        max_memory_allocated=7,
    )
    # the recorder answers only for functions that the real module has
    real = torch.accelerator
    monkeypatch.setattr("enginebay.worker.device.torch", _TorchWith(recorder, real))
    return recorder


class _TorchWith:
    """torch with another ``accelerator``, and tensors that stay on the CPU whatever device is asked for."""

    def __init__(self, accelerator: Recorder, real: Any) -> None:
        self.accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def ones(self, shape: tuple[int, ...], *, device: torch.device) -> torch.Tensor:
        self.accelerator.log.append(("ones", shape, str(device)))
        return torch.ones(shape)


def test_cuda_verbs(accelerator: Recorder) -> None:
    device = TorchDevice("cuda")
    assert device.count() == 2
    device.set_current(1)
    assert (device.name(), device.torch_device) == ("cuda:1", torch.device("cuda", 1))
    memory = device.memory()
    assert (memory.total, memory.free, memory.reserved, memory.allocated, memory.peak) == (80, 70, 9, 5, 7)
    device.touch_math_library()
    device.empty_cache()
    device.reset_peak()
    assert accelerator.log == [
        ("device_count",),
        ("set_device_index", 1),
        ("get_memory_info", 1),
        ("memory_reserved", 1),
        ("memory_allocated", 1),
        ("max_memory_allocated", 1),
        ("ones", (16, 16), "cuda:1"),
        ("synchronize", 1),
        ("empty_cache",),
        ("reset_peak_memory_stats", 1),
    ]


@pytest.mark.parametrize("native", [True, False])
def test_cuda_precision(accelerator: Recorder, monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    asked: list[bool] = []

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return native

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    device = TorchDevice("cuda")
    assert device.supports_dtype("bfloat16") is native
    assert asked == [False]
    assert device.supports_dtype("float16")
    assert not device.supports_dtype("float8")


def test_cuda_names(accelerator: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TorchDevice("cuda").collective_backend() == "nccl"
    monkeypatch.setattr(torch.version, "hip", None)
    assert TorchDevice("cuda").visible_env() == "CUDA_VISIBLE_DEVICES"
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert TorchDevice("cuda").visible_env() == "HIP_VISIBLE_DEVICES"
    assert (TorchDevice("xpu").collective_backend(), TorchDevice("xpu").visible_env()) == ("xccl", "ZE_AFFINITY_MASK")
    assert (TorchDevice("new").collective_backend(), TorchDevice("new").visible_env()) == ("", "")


def test_availability(accelerator: Recorder) -> None:
    assert current_accelerator() == "cuda"
    assert TorchDevice("cuda").unavailable_reason() is None
    assert TorchDevice("xpu").unavailable_reason() == (
        f"torch {torch.__version__} drives 'cuda' on this machine, not 'xpu'"
    )
    accelerator.answers["is_available"] = False
    assert current_accelerator() is None
    assert TorchDevice("cuda").unavailable_reason() == f"torch {torch.__version__} finds no accelerator on this machine"
    accelerator.answers.update(is_available=True, current_accelerator=None)
    assert current_accelerator() is None

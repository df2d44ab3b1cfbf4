"""Which device kind, which precision, how many threads, and what is kept out of the environment."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.config import EngineConfig
from enginebay.errors import CapabilityError
from enginebay.worker.choice import choose_kind, dtypes_in_force, first_available
from enginebay.worker.distributed import clean_environment, worker_threads
from support.scripted_device import ScriptedDevice
from support.workers import payload


@pytest.mark.parametrize(
    ("wanted", "supported", "machine", "expected"),
    [
        ("auto", ("cpu", "cuda"), "cuda", "cuda"),
        ("auto", ("cpu", "cuda"), None, "cpu"),
        ("auto", ("cpu",), "cuda", "cpu"),
        ("auto", ("cpu", "cuda"), "xpu", "cpu"),
        ("cpu", ("cpu", "cuda"), "cuda", "cpu"),
        ("cuda", ("cpu", "cuda"), None, "cuda"),  # whether it works is the device's to say
    ],
)
def test_kind(wanted: str, supported: tuple[str, ...], machine: str | None, expected: str) -> None:
    assert choose_kind(wanted, runner="r", supported=supported, accelerator=lambda: machine) == expected


def test_the_machine_is_not_asked_when_it_does_not_matter() -> None:
    def ask() -> str | None:
        raise AssertionError("asked")

    assert choose_kind("auto", runner="r", supported=("cpu",), accelerator=ask) == "cpu"
    assert choose_kind("cuda", runner="r", supported=("cuda",), accelerator=ask) == "cuda"


def test_no_kind_left() -> None:
    with pytest.raises(CapabilityError) as caught:
        choose_kind("auto", runner="r", supported=("npu", "tpu"), accelerator=lambda: None)
    assert str(caught.value) == "runner 'r' computes on npu, tpu, and this machine has none of them that works"


def test_first_available() -> None:
    devices = {"npu": ScriptedDevice("npu", unavailable="no driver"), "tpu": ScriptedDevice("tpu")}
    assert first_available(("cpu", "npu", "tpu"), devices.__getitem__) == "tpu"
    assert first_available(("cpu", "npu"), devices.__getitem__) is None


@pytest.mark.parametrize(
    ("settled", "config", "expected"),
    [
        ({}, {}, ("float32", "float32")),  # the model's own
        ({}, {"model": {"dtype": "bfloat16"}}, ("bfloat16", "bfloat16")),
        ({}, {"cache": {"dtype": "float16"}}, ("float32", "float16")),
        ({"dtype": "float16", "cache_dtype": "bfloat16"}, {"model": {"dtype": "float32"}}, ("float16", "bfloat16")),
    ],
)
def test_dtypes(settled: dict[str, str], config: dict[str, Any], expected: tuple[str, str]) -> None:
    import msgspec

    start = msgspec.structs.replace(payload(), **settled)
    assert dtypes_in_force(start, EngineConfig(**config)) == expected


@pytest.mark.parametrize(
    ("configured", "cores", "ranks", "omp", "expected"),
    [(3, 8, 1, "2", 3), (None, 8, 1, "2", None), (None, 8, 2, None, 4), (None, 2, 4, "", 1), (None, 7, 2, None, 3)],
)
def test_threads(configured: int | None, cores: int, ranks: int, omp: str | None, expected: int | None) -> None:
    assert worker_threads(configured=configured, cores=cores, ranks_on_node=ranks, omp_num_threads=omp) == expected


@pytest.mark.parametrize(
    ("kind", "left"), [("cuda", {"A": "1"}), ("cpu", {"A": "1", "NCCL_ASYNC_ERROR_HANDLING": "1"})]
)
def test_environment(kind: str, left: dict[str, str]) -> None:
    environ = {"A": "1", "NCCL_ASYNC_ERROR_HANDLING": "1"}
    clean_environment(kind, environ)
    clean_environment(kind, environ)
    assert environ == left

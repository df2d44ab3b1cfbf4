"""The kernels' threads: the same results however many there are, whoever calls at once, and in a forked child."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay_runner_v2.native import load

OUTPUTS, INPUTS = 32 * 37, 64
"""37 blocks of weights: they do not divide among any number of threads that is tried."""


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    load()
    torch.manual_seed(0)
    packed: torch.Tensor = torch.ops.enginebay.pack_linear(torch.randn(OUTPUTS, INPUTS, dtype=torch.bfloat16))
    return packed


def product(x: torch.Tensor, weight: torch.Tensor, threads: int) -> torch.Tensor:
    torch.set_num_threads(threads)  # of the calling thread's operators
    out: torch.Tensor = torch.ops.enginebay.linear(x, weight, None, OUTPUTS)
    return out


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 70), threads=st.integers(2, 9), seed=st.integers(0, 9))
def test_the_number_of_threads_changes_no_bit(weight: torch.Tensor, rows: int, threads: int, seed: int) -> None:
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(seed)).bfloat16()
    assert torch.equal(product(x, weight, threads), product(x, weight, 1))


def test_threads_that_call_at_once_each_get_their_own(weight: torch.Tensor) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((1 + number, INPUTS), 1.0 + number, dtype=torch.bfloat16)
        expected = product(x, weight, 1)
        for _ in range(300):
            if not torch.equal(product(x, weight, 3), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_threads_of_its_own(weight: torch.Tensor) -> None:
    x = torch.ones(3, INPUTS, dtype=torch.bfloat16)
    expected = product(x, weight, 3)
    child = os.fork()
    if child == 0:  # nothing of the test's may run here, whatever happens
        code = 1
        try:
            code = 0 if torch.equal(product(x, weight, 3), expected) and len(os.listdir("/proc/self/task")) >= 3 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_idle_pool_takes_no_processor_time(weight: torch.Tensor) -> None:
    product(torch.ones(3, INPUTS, dtype=torch.bfloat16), weight, 3)
    threads = [task for task in os.listdir("/proc/self/task") if _name(task) == "enginebay-pool"]
    assert len(threads) >= 2
    assert all(_sleeps(task) for task in threads)


def _name(task: str) -> str:
    with open(f"/proc/self/task/{task}/comm") as file:
        return file.read().strip()


def _sleeps(task: str) -> bool:
    """Whether it comes to rest: it looks for work for a while after each."""
    resting = threading.Event()
    for _ in range(1000):
        with open(f"/proc/self/task/{task}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return True
        resting.wait(0.01)
    return False

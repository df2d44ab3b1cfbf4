"""A call through our own line to an actor's worker, against a call of Ray's to the same actor: ``-m bench``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from enginebay.interfaces import Kind
from enginebay.messages import SampleTokens
from enginebay.testing._executor_driver import ExecutorDriver
from enginebay.testing._offer import offer
from enginebay.testing.fakes import FAKE_RUNNER, KIT_EXTENSION
from enginebay_ray.door import load_ray
from enginebay_ray.executor import RayExecutor

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

CALLS = 500
ROUNDS = 5


def _timed(call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return sorted(times)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_call(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path / "site", monkeypatch, Kind.RUNNER, FAKE_RUNNER, "enginebay.testing.fakes")
    offer(tmp_path / "site", monkeypatch, Kind.WORKER_EXTENSION, KIT_EXTENSION, "enginebay.testing.fakes")
    options = {"env": ["PYTHONPATH"], "gpus_per_worker": 0, "transport": transport}
    driver = ExecutorDriver("ray", tmp_path / "driver", options=options)
    start = time.perf_counter()
    driver.start()
    started = time.perf_counter() - start
    try:
        executor = driver.executor
        assert isinstance(executor, RayExecutor)
        session = executor._session()
        assert session is not None
        (actor,) = session._actors.values()
        ray = load_ray()

        def ours() -> object:
            # a worker that has loaded nothing answers with a failure: little work, and an answer of usual size
            return driver.runtime.wait(driver.submit(SampleTokens()), driver.deadline())

        ours_us, rays_us = [], []
        for _ in range(ROUNDS):
            ours_us.append(_timed(ours))
            rays_us.append(_timed(lambda: ray.get(actor.devices.remote())))
        figures = [
            (median(t[CALLS // 2] for t in one), median(t[CALLS * 99 // 100] for t in one))
            for one in (ours_us, rays_us)
        ]
        (p50, p99), (rays_p50, rays_p99) = figures
        print(
            f"\ntransport {transport}: start {started:.1f} s; our line p50 {p50:.0f} us, p99 {p99:.0f} us; "
            f"Ray's actor call p50 {rays_p50:.0f} us, p99 {rays_p99:.0f} us"
        )
        assert p50 < rays_p50
    finally:
        driver.stop()
        driver.run_folder.close()

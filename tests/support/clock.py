"""Time as a test sets it."""

from __future__ import annotations

from typing import Any

from enginebay.runtime import Clock, Runtime, system_runtime


class FakeClock(Clock):
    """Time as the test sets it; a wait for a future that is not done lets its deadline pass."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def now_ns(self) -> int:
        return int(self.time * 1e9)

    def wall_ns(self) -> int:
        return self.now_ns() + 10**18

    def wait_future(self, future: Any, deadline: float | None) -> Any:
        if not future.done():
            assert deadline is not None
            self.time = deadline
            raise TimeoutError
        return future.result()


def fake_runtime(clock: Clock) -> Runtime:
    """The real seams with another clock."""
    real = system_runtime(seed=1)
    return Runtime(clock=clock, transport=real.transport, spawner=real.spawner, entropy=real.entropy)

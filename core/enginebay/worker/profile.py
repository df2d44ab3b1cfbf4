"""Records what a worker does: by torch's profiler where the device is torch's, else by Python's own."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from pathlib import Path

from enginebay.interfaces import Device
from enginebay.worker.host import HostDevice

__all__ = ["Profile"]


class Profile:
    """A recording of the thread that began it; ``end`` has to be called there."""

    def __init__(self, path: Path, stop: Callable[[], None], write: Callable[[str], object]) -> None:
        self._path = path
        self._stop = stop
        self._write = write

    @classmethod
    def begin(cls, folder: str, rank: int, device: Device) -> Profile:
        """Start recording, for a file of ``folder``, which is made: a Chrome trace of the operators and kernels, or,
        on a device that is not torch's, a file for ``python -m pstats``. It is kept in memory until it is written.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        if isinstance(device, HostDevice):
            recorder = cProfile.Profile()
            recorder.enable()
            return cls(place / f"rank{rank}.pstats", recorder.disable, recorder.dump_stats)
        import torch
        from torch.profiler import ProfilerActivity, profile

        wanted = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        trace = profile(activities=wanted)
        trace.start()
        return cls(place / f"rank{rank}.trace.json", trace.stop, trace.export_chrome_trace)

    def end(self) -> str:
        """Stop, write, and say where."""
        self._stop()
        self._write(str(self._path))
        return str(self._path)

    def drop(self) -> None:
        """Stop; nothing is written."""
        self._stop()

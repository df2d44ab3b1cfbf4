"""A worker extension for the benchmark of recovery: it writes to the whole KV cache, and knows what imports took."""

from __future__ import annotations

import builtins
import json
import os
import time
from typing import Any

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import NoOptions, WorkerExtensionContext, WorkerExtensionPlugin

LEAST_SECONDS = 0.001
"""An import that took less is none of which a start consists."""
PAGE = 4096


class ImportClock:
    """Notes each outermost import statement: wall seconds of its begin and end."""

    def __init__(self) -> None:
        self.noted: list[tuple[float, float]] = []
        self._depth = 0
        self._plain: Any = builtins.__import__
        builtins.__import__ = self._import

    def _import(self, *args: Any, **kwargs: Any) -> Any:
        begun, self._depth = time.time(), self._depth + 1
        try:
            return self._plain(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth and (ended := time.time()) - begun > LEAST_SECONDS:
                self.noted.append((begun, ended))


_CLOCK = ImportClock() if "ENGINEBAY_WORKER" in os.environ else None


class RecoveryProbe:
    """Made in every worker."""

    def __init__(self, context: WorkerExtensionContext[NoOptions]) -> None:
        self._runner: Any = context.runner

    def touch(self, payload: bytes) -> bytes:
        """Write to each page of the cache what it holds already; answers with its bytes, as JSON."""
        import torch

        size = 0
        for pages in {id(one): one for pair in self._runner._pages for one in pair}.values():
            flat = pages.view(-1).view(torch.uint8)
            flat[::PAGE].add_(0)
            size += flat.numel()
        return json.dumps(size).encode()

    def imports(self, payload: bytes) -> bytes:
        """The imports so far, as JSON."""
        assert _CLOCK is not None, "it is a worker's"
        return json.dumps(_CLOCK.noted).encode()


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[NoOptions]]:
    """The extension ``recovery_probe``."""
    return [WorkerExtensionPlugin(name="recovery_probe", factory=RecoveryProbe, methods=("touch", "imports"))]

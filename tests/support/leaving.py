"""What Python lets anybody's code raise past ``Exception``, and a thread to raise it in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["PAST_EXCEPTION", "NoWords", "in_a_thread"]

PAST_EXCEPTION: Final = (
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    type("Own", (BaseException,), {}),
)
"""All of Python's own, and one of a stranger's; a ``KeyboardInterrupt`` is Ctrl-C where signals arrive: see below."""


class NoWords(Exception):
    """An error, and a value, that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def in_a_thread(call: Callable[[], Any]) -> BaseException | None:
    """What the call raises where no signal arrives, as in the engine's own thread."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return raised[0] if raised else None

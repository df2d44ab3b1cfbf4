"""The tree of errors that users can meet; each says what happened, where, and what to do next.

::

    EnginebayError                      exit code
    ├── ConfigError                     2   the config, the command line or what they name is wrong
    │   ├── PluginError                     a plugin cannot be used
    │   │   ├── PluginNotFound              nothing installed has that name
    │   │   ├── PluginClash                 two packages offer that name
    │   │   ├── PluginBroken                it is installed, and does not import or register properly
    │   │   ├── PluginTooNew                it needs a plugin API that this engine does not offer
    │   │   └── OptionsRejected             its own options do not validate
    │   ├── CapabilityError                 parts that do not fit each other, or the machine
    │   ├── GraphError                      a graph cannot be traced, read or rewritten
    │   └── ModelError                      the model folder or file is missing, damaged or unsupported
    ├── StartFailed                     3   everything was well named, and starting it failed
    │   ├── WorkerFailed                    a worker failed in a named phase
    │   └── OutOfMemory                     less memory is free than was asked for
    ├── RequestError                    1   one request is wrong or failed; the others go on
    │   ├── InvalidRequest                  refused before it ran (HTTP 400)
    │   ├── RequestTooLong                  can never fit (HTTP 400)
    │   ├── UnknownRequest                  no such id (HTTP 404)
    │   ├── DuplicateRequest                the id is in use (HTTP 409)
    │   ├── EngineBusy                      not now: the engine drains, or requests run (HTTP 503)
    │   │   └── EngineAsleep                    not before it is woken up (HTTP 503)
    │   └── RequestFailed                   it ran and failed (HTTP 500)
    ├── WorkerLost                      4   a worker died, and may not or must not be restarted
    ├── WorkerHung                      5   a worker makes no progress, and may not be restarted
    └── EngineDead                      70  the engine stopped; carries the one root cause
        └── PolicyFailed                    a scheduler's own code raised

The command line turns an error into its ``exit_code`` and one line on stderr.
"""

from __future__ import annotations

import threading  # noqa: TID251  # nothing is started: it says which thread this is
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import ClassVar

__all__ = [
    "CapabilityError",
    "ConfigError",
    "DuplicateRequest",
    "EngineAsleep",
    "EngineBusy",
    "EngineDead",
    "EnginebayError",
    "GraphError",
    "InvalidRequest",
    "ModelError",
    "OptionsRejected",
    "OutOfMemory",
    "PluginBroken",
    "PluginClash",
    "PluginError",
    "PluginNotFound",
    "PluginTooNew",
    "PolicyFailed",
    "RequestError",
    "RequestFailed",
    "RequestTooLong",
    "StartFailed",
    "UnknownRequest",
    "WorkerFailed",
    "WorkerHung",
    "WorkerLost",
    "did_you_mean",
    "in_words",
    "is_interrupt",
    "one_line",
    "said",
    "shown",
]


class EnginebayError(Exception):
    """Base of all errors of enginebay; ``exit_code`` is what a process that dies of it returns."""

    exit_code: ClassVar[int] = 70


class ConfigError(EnginebayError):
    """The config, or something that it names, is wrong; nothing was started."""

    exit_code = 2


class PluginError(ConfigError):
    """A plugin cannot be used."""


class PluginNotFound(PluginError):
    """No installed package offers this name."""


class PluginClash(PluginError):
    """Two installed packages offer this name; neither is used."""


class PluginBroken(PluginError):
    """The package is installed, but does not import, or does not register what it promised."""


class PluginTooNew(PluginError):
    """The plugin was written against a plugin API that this engine does not offer."""


class OptionsRejected(PluginError):
    """The options given to a plugin do not validate against the model that it declares."""


class CapabilityError(ConfigError):
    """Two parts, or a part and the machine, do not fit; refused at start, never degraded in silence."""


class GraphError(ConfigError):
    """A graph cannot be traced, read from its record, or rewritten."""


class ModelError(ConfigError):
    """The model is missing, damaged, or of a kind that the runner does not support."""


class StartFailed(EnginebayError):
    """The config was good, and starting the engine failed."""

    exit_code = 3


class WorkerFailed(StartFailed):
    """A call on a worker failed; the message names rank, host, pid and phase, ``remote_traceback`` has the rest."""

    def __init__(self, message: str, *, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback


class OutOfMemory(StartFailed):
    """The device has less free memory than the engine was told to take."""


class RequestError(EnginebayError):
    """One request is wrong or failed; ``status`` is its HTTP form, ``param`` the field at fault, if one is."""

    exit_code = 1
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A request that was refused before it ran."""


class RequestTooLong(InvalidRequest):
    """A request that can never fit: over the model's length, or over the whole KV cache."""


class UnknownRequest(RequestError):
    """No request of this client has that id."""

    status = 404


class DuplicateRequest(RequestError):
    """The id is in use by an unfinished request of the same client."""

    status = 409


class EngineBusy(RequestError):
    """It cannot be done now, and nothing was changed: the same may be asked again later."""

    status = 503


class EngineAsleep(EngineBusy):
    """The engine sleeps, or has no weights: the same may be asked again when it was woken up."""


class RequestFailed(RequestError):
    """The request ran and failed by its own fault (for example: its logits became NaN)."""

    status = 500


class WorkerLost(EnginebayError):
    """A worker died beyond its restart budget, or under an executor that cannot restart it."""

    exit_code = 4


class WorkerHung(EnginebayError):
    """A worker made no progress within its deadline, and cannot be restarted."""

    exit_code = 5


class EngineDead(EnginebayError):
    """The engine has stopped; the message is the root cause, told once to every client that waits."""


class PolicyFailed(EngineDead):
    """A scheduler's own code raised; it is never replaced by another scheduler in silence."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with a leading space, or an empty string when nothing known comes close."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def is_interrupt(error: BaseException) -> bool:
    """Ctrl-C, or the command line's own way of ending: neither is the doing of a plugin that was being called.

    Both come in the main thread alone: a ``KeyboardInterrupt`` in any other one was raised by somebody's code, as a
    ``SystemExit`` or a ``CancelledError`` was in any thread.
    """
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return not isinstance(error, Exception) and type(error).__module__.partition(".")[0] == "enginebay"


def in_words(error: BaseException) -> str:
    """An error that strange code raised, in one line: ``RuntimeError: its words``, or its class alone.

    Its class alone, too, when it cannot say its words: what is being told is more than that.
    """
    kind = type(error).__name__
    words = _said(lambda: " ".join(str(error).split()), "(its text cannot be had)")
    return one_line(f"{kind}: {words}" if words else kind)


def said(error: BaseException) -> str:
    """What an error says, as it says it; its class when it cannot: a subclass of ours may be a stranger's."""
    return _said(lambda: str(error), f"{type(error).__name__}: (its text cannot be had)")


def shown(value: object, limit: int = 200) -> str:
    """A value of strange code's in one line of at most ``limit`` characters; its class when it has no ``repr``."""
    return one_line(_said(lambda: repr(value), f"a {type(value).__name__} that cannot be shown"), limit)


def _said(words: Callable[[], str], otherwise: str) -> str:
    try:
        return words()
    except BaseException as error:
        if is_interrupt(error):
            raise
        return otherwise


_MAX_LINE = 1000


def one_line(text: str, limit: int = _MAX_LINE) -> str:
    """Text that holds a stranger's words, made fit for one line: control characters gone, not endless."""
    if len(text) <= limit and text.isprintable():
        return text
    cut = text[:limit]
    clean = cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)
    return clean if len(text) <= limit else f"{clean[: limit - 1]}…"

"""``check --probe``: brings the engine up in a process of its own, and brings back what only workers can know."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, Final

import click
import msgspec

from enginebay import errors
from enginebay.cli._style import printable
from enginebay.config import DeadlinesConfig, Resolved
from enginebay.errors import EnginebayError, StartFailed, one_line

__all__ = ["probe"]

_TICK: Final = 0.1
_MARGIN: Final = 1.0
"""Seconds beyond the engine's own deadlines: what it says of a hang is better than what can be said from here."""
_MAX_LINE: Final = 1 << 20
_MAX_OUTPUT: Final = 1 << 16
_LAST_LINES: Final = 40
_OOM_COUNTERS: Final = ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class _Error(msgspec.Struct):
    """What an error must have."""

    kind: str
    phase: str
    message: str
    notes: list[str]


class _Group(msgspec.Struct):
    """What is read of a group of the KV cache."""

    block_size: int
    bytes_per_block: int


class _Worker(msgspec.Struct):
    """What is read of a worker."""

    device: str
    weight_bytes: int
    kv_cache_groups: Annotated[list[_Group], msgspec.Meta(min_length=1)]


class _Finished(msgspec.Struct):
    """What is read of a probe that went well; ``check`` shows it."""

    in_force: dict[str, str]
    runner: str
    kv_blocks: int
    kv_blocks_why: str
    longest_request: int
    longest_request_why: str
    workers: Annotated[list[_Worker], msgspec.Meta(min_length=1)]
    seconds: dict[str, float]


_KINDS: Final = {"phase": str, "error": _Error, "finished": _Finished}


def _checked(line: bytes) -> dict[str, Any]:
    """One line of the report, of one of ``_KINDS``. What was loaded there may have written on its descriptor.

    Raises ``StartFailed`` for anything else.
    """
    try:
        said = json.loads(line)
        [(kind, value)] = said.items()
        msgspec.convert(value, _KINDS[kind])
        if kind == "error" and not issubclass(getattr(errors, value["kind"]), EnginebayError):
            raise TypeError(f"{value['kind']} is no error of enginebay")
    except (msgspec.MsgspecError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise StartFailed(one_line(f"the probe's report makes no sense: {why}")) from error
    return {kind: value}


@dataclass
class _Probe:
    """How a probe stands: its phase and since when, what it reported, and the end of what it printed."""

    phase: str = "start"
    begun: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)
    pending: bytes = b""
    output: bytes = b""
    told: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def printed(self, data: bytes) -> None:
        """Take in what the child and its libraries print; the end of it is kept."""
        self.output = (self.output + data)[-_MAX_OUTPUT:]

    def reported(self, data: bytes, show: Callable[[str], None]) -> None:
        """Take in bytes of the report."""
        *lines, self.pending = (self.pending + data).split(b"\n")
        if len(self.pending) > _MAX_LINE:
            raise StartFailed(f"the probe reported more than {_MAX_LINE} bytes in one line, and was ended")
        for line in lines:
            said = _checked(line)
            if "phase" in said:
                self.phase, self.since = said["phase"], time.monotonic()
                show(self.phase)
            elif "error" in said:
                self.error = said["error"]
                self.phase = said["error"]["phase"]
            else:
                self.told = said["finished"]


def probe(resolved: Resolved) -> dict[str, Any]:
    """Start and stop the engine that the config describes in a child process; what it and its workers said.

    The child is killed, with all that it started, when this returns or raises. Raises what the engine's start would,
    with the same message; ``StartFailed`` when a phase outlasts its deadline or the child dies. What the child
    printed last is shown on stderr then.
    """
    state, kills = _Probe(), _oom_kills()
    with contextlib.ExitStack() as undo:
        report, to_us = os.pipe()
        ours = undo.enter_context(os.fdopen(report, "rb", buffering=0))
        theirs = undo.enter_context(os.fdopen(to_us, "wb", buffering=0))
        request = undo.enter_context(tempfile.TemporaryFile())
        request.write(_request(resolved, to_us))
        request.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-m", "enginebay.cli._probe_child"],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(to_us,),
            start_new_session=True,  # so that what it starts can be ended with it
        )
        undo.callback(_end, child)
        theirs.close()
        assert child.stdout is not None
        try:
            with _shown() as show:
                _follow(child, ours, child.stdout, state, resolved.config.deadlines, show)
            if state.told is not None:
                return state.told
            raise _reported(state) if state.error is not None else _died(child, state, kills)
        except EnginebayError:
            _show_output(state)
            raise


def _request(resolved: Resolved, report: int) -> bytes:
    request = {
        "config": resolved.config.model_dump_json(),
        "origins": resolved.origins,
        "file": resolved.file,
        "parent": os.getpid(),
        "report": report,
    }
    return json.dumps(request).encode()


def _follow(
    child: subprocess.Popen[bytes],
    report: IO[bytes],
    output: IO[bytes],
    state: _Probe,
    deadlines: DeadlinesConfig,
    show: Callable[[str], None],
) -> None:
    """Read what the child says until it is done, or dead; each phase has its deadline."""
    with selectors.DefaultSelector() as selector:
        for file in (report, output):
            os.set_blocking(file.fileno(), False)
            selector.register(file, selectors.EVENT_READ)
        while state.told is None and state.error is None:
            gone = _has_ended(child)  # asked before the last look: what it said before it ended is there by now
            selector.select(0 if gone else _TICK)
            state.printed(_read(output, selector))
            data = _read(report, selector)
            state.reported(data, show)
            if gone and not data:
                return
            limit, name = _limit(state.phase, deadlines)
            if time.monotonic() - state.since > limit + _MARGIN:
                raise StartFailed(
                    f"the probe did not get through {state.phase} within {limit:g} s ([deadlines] {name}) and was ended"
                )
        state.printed(_read(output, selector))


def _limit(phase: str, deadlines: DeadlinesConfig) -> tuple[float, str]:
    """How long a phase may take, and by which key; they are the bounds that the engine has itself."""
    name = {"launch": "start", "stop": "stop"}.get(phase, "load_model")
    return getattr(deadlines, name), name


def _read(file: IO[bytes], selector: selectors.BaseSelector) -> bytes:
    """What is there now; at the end it is not looked at any more."""
    if file not in selector.get_map():
        return b""
    try:
        data = os.read(file.fileno(), _MAX_OUTPUT)
    except BlockingIOError:
        return b""
    if not data:
        selector.unregister(file)
    return data


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; it is left unreaped, so that its number, which is its group's, is no other's yet."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all that it started."""
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert child.stdout is not None
    child.stdout.close()


def _reported(state: _Probe) -> EnginebayError:
    """The error that the engine's start raised there."""
    assert state.error is not None
    error: EnginebayError = getattr(errors, state.error["kind"])(state.error["message"])
    for note in state.error["notes"]:
        error.add_note(str(note))
    return error


def _died(child: subprocess.Popen[bytes], state: _Probe, kills: int) -> StartFailed:
    """One line on a child that ended without a report."""
    _end(child)
    code = child.returncode
    if code >= 0:
        return StartFailed(f"the probe's process ended with code {code} in {state.phase}, without a word of why")
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    why = ""
    if number == signal.SIGKILL and _oom_kills() > kills:
        why = ": out of memory, says the kernel; choose a smaller model or [cache] memory_bytes, or free memory"
    return StartFailed(f"the probe's process was killed by {name} in {state.phase}{why}")


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, as far as it tells us."""
    total = 0
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            pairs = (line.split() for line in Path(path).read_text(encoding="utf-8").splitlines())
            total += sum(int(value) for key, value in pairs if key == "oom_kill")
    return total


def _show_output(state: _Probe) -> None:
    """Where the probe failed, and the last lines of what it printed, if it printed anything."""
    notes = [] if state.error is None else [str(note) for note in state.error["notes"]]
    where = "; ".join([f"after {time.monotonic() - state.begun:.1f} s, in {state.phase}", *notes])
    lines = state.output.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    click.echo(printable(f"the probe failed {where}" + ("; it printed last:" if lines else "")), err=True)
    for line in lines:
        click.echo(printable(f"  {line}"), err=True)


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """A spinner with the phase, on a terminal; a function that does nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda phase: None
        return
    from rich.console import Console

    with Console(stderr=True).status("probing: start") as status:
        yield lambda phase: status.update(f"probing: {phase}")

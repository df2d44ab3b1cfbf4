"""``--trace FILE``: the settings that it stands for, and a fresh file, which is never somebody else's."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enginebay.cli._options import resolve
from enginebay.errors import ConfigError

_BEGIN: Final = b'{"resourceSpans"'
"""How every trace begins that we have written."""


def with_trace(trace: Path, config: Path | None, sets: Sequence[str]) -> tuple[str, ...]:
    """``sets`` with those of ``--trace`` before them: a run that is traced on demand records each of its steps.

    An older trace is emptied, once the whole config is known to be good and does write there; any other file, and
    what is no plain file (a device, a link), is refused and left as it is. Raises ``ConfigError``.
    """
    path = trace.absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--trace {str(trace)!a}: the name is not UTF-8 text; name another file") from None
    # a setting of the user's own comes later and wins
    every = (f"telemetry.file={json.dumps(str(path), ensure_ascii=False)}", "telemetry.step_every=1", *sets)
    if resolve(config, every).config.telemetry.file == path:
        _empty(trace, path)
    return every


def _empty(trace: Path, path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"--trace {trace}: cannot be written afresh: {error.strerror}; name a new file") from error
    with open(descriptor, "r+b", buffering=0, closefd=True) as file:  # of a descriptor, not of a path
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"--trace {trace}: is not a regular file; name a new file")
        begin = file.read(len(_BEGIN))
        if begin and begin != _BEGIN:
            raise ConfigError(f"--trace {trace}: the file that is there is no trace; remove it, or name another")
        file.truncate(0)

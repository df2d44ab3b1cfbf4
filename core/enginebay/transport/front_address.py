"""Where an engine listens for front ends, as people write it: ``ipc://PATH`` or ``tcp://HOST:PORT``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginebay.errors import ConfigError
from enginebay.runfolder import socket_path

__all__ = ["FRONT_NAME", "FrontAddress", "read_address", "write_address"]

FRONT_NAME: Final = "front"
_ADDRESS: Final = "address"
"""The socket of requests in an engine's run folder."""

_CONTROL_SUFFIX: Final = ".ctl"


@dataclass(frozen=True, kw_only=True)
class FrontAddress:
    """One of the two: ``path`` of a Unix socket, or ``host`` and ``port`` (0: a free one)."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> FrontAddress:
        """Raises ``ConfigError`` for what is neither."""
        scheme, separator, rest = text.partition("://")
        if separator and scheme == "ipc" and rest:
            path = Path(rest).absolute()
            socket_path(path.parent, f"{path.name}{_CONTROL_SUFFIX}")  # the longer one of the two
            return cls(path=path)
        if separator and scheme == "tcp":
            return cls._tcp(text, rest)
        raise ConfigError(
            f"{text!r} is no address of an engine: write ipc:///folder/name or tcp://HOST:PORT, "
            "as 'enginebay up' prints it"
        )

    @classmethod
    def _tcp(cls, text: str, rest: str) -> FrontAddress:
        host, separator, port = rest.rpartition(":")
        if not separator or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ConfigError(f"the address {text!r} has no port from 0 to 65535: write tcp://HOST:PORT")
        host = "127.0.0.1" if host == "localhost" else host
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            raise ConfigError(f"the address {text!r} has no IP address: write tcp://127.0.0.1:PORT") from None
        return cls(host=host, port=int(port))

    @property
    def is_local(self) -> bool:
        """Whether it is a Unix socket: then both ends are of one machine, and the file's mode says who may come."""
        return self.path is not None

    def control(self, port: int = 0) -> FrontAddress:
        """The address of the socket for control beside it; over TCP it has a port of its own."""
        if self.path is not None:
            return FrontAddress(path=self.path.with_name(f"{self.path.name}{_CONTROL_SUFFIX}"))
        return FrontAddress(host=self.host, port=port)

    def __str__(self) -> str:
        return f"ipc://{self.path}" if self.path is not None else f"tcp://{self.host}:{self.port}"


def write_address(folder: Path, address: FrontAddress) -> None:
    """Leave in an engine's run folder where it listens, so that it is found wherever that is."""
    (folder / _ADDRESS).write_text(str(address), encoding="utf-8")


def read_address(folder: Path) -> str:
    """Where the engine of this run folder listens; "" when it says nothing: it is no served one."""
    try:
        return (folder / _ADDRESS).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""

"""The key file of an engine that listens on TCP: its own keys, and who may come with which role.

Two files are made: FILE for the engine, and FILE.client for a front end, to be copied to where it runs. Both are JSON
of mode 0600. More clients are let in by adding their public keys to FILE::

    {"server": {"public": …, "secret": …}, "clients": [{"name": "ops", "public": …, "roles": ["observe"]}]}
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from enginebay.errors import ConfigError, one_line
from enginebay.transport.curve import KeyPair, new_keys

__all__ = ["ALL_ROLES", "ClientKeys", "Role", "ServerKeys", "client_file"]

T = TypeVar("T", bound=msgspec.Struct)

Role = Literal["submit", "observe", "control"]

ALL_ROLES: Final[tuple[Role, ...]] = ("submit", "observe", "control")
"""Submit: requests; observe: statistics and status; control: all that changes the engine."""

_MAX_FILE_BYTES: Final = 1 << 20
_KEY_CHARS: Final = 40


class _Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    public: str
    secret: str


class _Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    public: str
    name: str = ""
    roles: tuple[Role, ...] = ALL_ROLES


class _ServerFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: _Pair
    clients: tuple[_Client, ...]


class _ClientFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server_public: str
    client: _Pair


@dataclass(frozen=True, kw_only=True)
class ServerKeys:
    """The engine's keys, and the roles of each public key that may come in."""

    own: KeyPair
    roles: dict[bytes, tuple[Role, ...]]

    @classmethod
    def read_or_make(cls, file: Path) -> ServerKeys:
        """The keys in ``file``; when there is none, it is made, and ``FILE.client`` beside it.

        Raises ``ConfigError`` when it can be read by others, or is damaged.
        """
        if not os.path.lexists(file):
            _make(file)
        held = _read(file, _ServerFile)
        keys = {one.public for one in held.clients} | {held.server.public, held.server.secret}
        _check_keys(file, keys)
        own = KeyPair(public=held.server.public.encode(), secret=held.server.secret.encode())
        return cls(own=own, roles={one.public.encode(): one.roles for one in held.clients})


@dataclass(frozen=True, kw_only=True)
class ClientKeys:
    """A front end's own keys, and the public key of the one engine that it speaks to."""

    own: KeyPair
    server_public: bytes

    @classmethod
    def read(cls, file: Path) -> ClientKeys:
        """From a client's file. Raises ``ConfigError``."""
        held = _read(file, _ClientFile)
        _check_keys(file, {held.server_public, held.client.public, held.client.secret})
        own = KeyPair(public=held.client.public.encode(), secret=held.client.secret.encode())
        return cls(own=own, server_public=held.server_public.encode())


def client_file(file: Path) -> Path:
    """Where the client's part of a key file is."""
    return file.with_name(f"{file.name}.client")


def _make(file: Path) -> None:
    server, client = new_keys(), new_keys()
    server_public = server.public.decode()
    _write(client_file(file), _ClientFile(server_public=server_public, client=_pair(client)))
    _write(file, _ServerFile(server=_pair(server), clients=(_Client(name="all", public=client.public.decode()),)))


def _pair(keys: KeyPair) -> _Pair:
    return _Pair(public=keys.public.decode(), secret=keys.secret.decode())


def _write(file: Path, held: msgspec.Struct) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be made: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(held), indent=2) + b"\n")


def _read(file: Path, kind: type[T]) -> T:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be read: {error.strerror}") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ConfigError(f"the key file {file} is no regular file")
        if about.st_uid not in (0, os.getuid()) or about.st_mode & 0o077:
            raise ConfigError(
                f"the key file {file} belongs to user {about.st_uid} with mode {stat.S_IMODE(about.st_mode):04o}: "
                f"others can read it or change it; make new keys, or: chmod 600 {file}"
            )
        text = os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        other = "the engine's" if kind is _ClientFile else "a client's"
        hint = f" (is it {other} part?)" if b'"server' in text else ""
        raise ConfigError(one_line(f"the key file {file} is damaged{hint}: {error}")) from None


def _check_keys(file: Path, keys: set[str]) -> None:
    from zmq.utils import z85

    for key in keys:
        try:
            good = len(key) == _KEY_CHARS and len(z85.decode(key.encode())) == 32
        except (KeyError, ValueError, UnicodeEncodeError):
            good = False
        if not good:
            raise ConfigError(f"the key file {file} holds something that is no key of {_KEY_CHARS} characters")

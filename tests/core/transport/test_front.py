"""Addresses, key files and the door for front ends."""

from __future__ import annotations

import json
import socket as sockets
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay.errors import ConfigError
from enginebay.runfolder import RunFolder
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_door import FrontDoor, Peer, Sent
from enginebay.transport.front_keys import ALL_ROLES, ClientKeys, ServerKeys, client_file


@pytest.mark.parametrize("text", ["ipc:///tmp/x/front", "tcp://127.0.0.1:5555", "tcp://[::1]:0"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(FrontAddress.parse(text)) == text


def test_localhost_is_an_address() -> None:
    assert str(FrontAddress.parse("tcp://localhost:1")) == "tcp://127.0.0.1:1"


@pytest.mark.parametrize("text", ["", "ipc://", "tcp://", "tcp://:5", "udp://1.2.3.4:5", "/tmp/x", "tcp://1.2.3.4:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError):
        FrontAddress.parse(text)


def test_keys_are_made_once_and_read_again(tmp_path: Path) -> None:
    made = ServerKeys.read_or_make(tmp_path / "keys")
    assert ServerKeys.read_or_make(tmp_path / "keys") == made
    client = ClientKeys.read(client_file(tmp_path / "keys"))
    assert client.server_public == made.own.public
    assert made.roles == {client.own.public: ALL_ROLES}
    assert made.own.secret.decode() not in client_file(tmp_path / "keys").read_text()
    assert made.own.secret.decode() not in repr(made)
    for file in (tmp_path / "keys", client_file(tmp_path / "keys")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _short_key(held: dict[str, object]) -> None:
    held["server"] = {"public": "x", "secret": "y"}


def _no_key(held: dict[str, object]) -> None:
    held["server"] = {"public": "é" * 40, "secret": "x" * 40}


def _role(held: dict[str, object]) -> None:
    held["clients"] = [{"public": "x" * 40, "roles": ["god"]}]


@pytest.mark.parametrize("damage", [_short_key, _no_key, _role, dict.clear])
def test_a_damaged_key_file_is_named(tmp_path: Path, damage: Callable[[dict[str, object]], None]) -> None:
    file = tmp_path / "keys"
    ServerKeys.read_or_make(file)
    held = json.loads(file.read_text())
    damage(held)
    file.write_text(json.dumps(held))
    with pytest.raises(ConfigError, match=f"the key file {file} "):
        ServerKeys.read_or_make(file)


def test_the_wrong_part_is_named(tmp_path: Path) -> None:
    ServerKeys.read_or_make(tmp_path / "keys")
    with pytest.raises(ConfigError, match=r"is it the engine's part\?"):
        ClientKeys.read(tmp_path / "keys")
    with pytest.raises(ConfigError, match=r"is it a client's part\?"):
        ServerKeys.read_or_make(client_file(tmp_path / "keys"))


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    ServerKeys.read_or_make(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=rf"with mode 0640: others can read it .* chmod 600 {file}"):
        ServerKeys.read_or_make(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ClientKeys.read(tmp_path / "none")
    with pytest.raises(ConfigError, match="is no regular file"):
        ServerKeys.read_or_make(tmp_path)


def test_tcp_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="can be reached by others, so both ends need keys"):
        FrontDoor(FrontAddress(host="127.0.0.1"))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    keys = ServerKeys.read_or_make(tmp_path / "keys")
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"bound to tcp://127.0.0.1:{port}: Address already in use"):
            FrontDoor(FrontAddress(host="127.0.0.1", port=port), keys)


def test_a_door_closes_twice_and_leaves_no_file() -> None:
    folder = RunFolder.make()
    door = FrontDoor(FrontAddress(path=folder.path / "front"))
    assert (folder.path / "front.ctl").exists()
    assert door.send(Peer(b"nobody", False), b"x") is Sent.GONE
    door.close()
    door.close()
    door.wake()
    assert not (folder.path / "front").exists()
    folder.close()

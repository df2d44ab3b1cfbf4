"""Addresses, key files and the door for front ends."""

from __future__ import annotations

import contextlib
import json
import socket as sockets
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from enginebay.errors import ConfigError
from enginebay.runfolder import RunFolder
from enginebay.transport.curve import secure_client
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_door import Arrival, FrontDoor, Peer, Sent
from enginebay.transport.front_keys import ALL_ROLES, ClientKeys, ServerKeys, client_file
from enginebay.transport.front_wire import Connected, FrontWire, Line, Lost, Received


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
    with pytest.raises(ConfigError, match="can be reached by other users, so both ends need keys"):
        FrontDoor(FrontAddress(host="127.0.0.1"))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    keys = ServerKeys.read_or_make(tmp_path / "keys")
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"bound to tcp://127.0.0.1:{port}: Address already in use; give"):
            FrontDoor(FrontAddress(host="127.0.0.1", port=port), keys)


@pytest.mark.parametrize("count", [1, 900])
def test_the_last_words_before_the_end_arrive(count: int) -> None:
    """What the door sent before it closed is told before the loss, also when both are there at once."""
    folder = RunFolder.make()
    door = FrontDoor(FrontAddress(path=folder.path / "front"))
    wire = FrontWire(door.address, None)
    wire.connect(Line.DATA, door.address)
    while Connected(Line.DATA) not in wire.receive(10.0):
        pass
    assert wire.send(Line.DATA, b"hello")
    arrivals: list[Arrival] = []
    while not arrivals:  # it also wakes for what the monitor tells
        arrivals, _ = door.receive(10.0)
    words = [b"%d" % number for number in range(count)]
    told = [Received(Line.DATA, word) for word in words if door.send(arrivals[0].peer, word) is Sent.QUEUED]
    door.close(10.0)
    assert wire._open[Line.DATA][1].poll(10_000)  # the loss is there to be read
    happened: list[object] = []
    while not isinstance((happened or [None])[-1], Lost):
        happened += wire.receive(10.0)
    assert happened == [*told, Lost(Line.DATA, "the connection was closed", refused=False)]
    wire.close()
    folder.close()


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


@pytest.mark.parametrize("line", list(Line))
def test_a_connection_that_has_ended_is_told_of_once(line: Line) -> None:
    """Else every later wait would be none."""
    folder = RunFolder.make()
    door = FrontDoor(FrontAddress(path=folder.path / "front"))
    wire = FrontWire(door.address, None)
    wire.connect(line, door.control_address if line is Line.CONTROL else door.address)
    while Connected(line) not in wire.receive(10.0):
        pass
    wire.close()
    events = door._control_events if line is Line.CONTROL else door._data_events
    told = []
    while events.poll(500) and len(told) < 10:
        told.append(door.receive(0.0)[1])
    assert 0 < len(told) < 10
    assert door._poller.poll(0) == []
    assert any(told) is (line is Line.DATA)
    door.close()
    folder.close()


@pytest.mark.parametrize("line", list(Line))
def test_a_message_without_an_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: Line) -> None:
    """The last part never comes; of as much in whole messages nothing is said."""
    monkeypatch.setattr("enginebay.transport.front_door.MAX_FRONT_BYTES", 100_000)
    monkeypatch.setattr("enginebay.transport.front_guard._SLACK_BYTES", 50_000)
    keys = ServerKeys.read_or_make(tmp_path / "keys")
    own = ClientKeys.read(client_file(tmp_path / "keys"))
    door = FrontDoor(FrontAddress(host="127.0.0.1"), keys)
    wire = FrontWire(door.address, own)
    to = door.control_address if line is Line.CONTROL else door.address
    wire.connect(line, to)
    passed = num_sent = num_arrived = 0
    is_up = False
    with (
        sockets.create_server(("127.0.0.1", 0)) as listener,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as endless,
    ):
        endless.linger = 0
        secure_client(endless, own.own, own.server_public)
        endless.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        endless.send_multipart([bytes(1000)] * 1000, zmq.NOBLOCK)
        near, _ = listener.accept()
        with near, sockets.create_connection(("127.0.0.1", to.port)) as far:
            near.setblocking(False)
            far.setblocking(False)
            until = time.monotonic() + 60
            while not door.num_cut_off or num_arrived < 10:
                assert time.monotonic() < until, "it was not cut off, or another was"
                is_up = is_up or Connected(line) in wire.receive(0.0)
                if is_up and num_sent < 10:
                    num_sent += wire.send(line, bytes(90_000))
                arrivals, _ = door.receive(0.01)
                assert {len(one.body) for one in arrivals} <= {90_000}
                num_arrived += len(arrivals)
                passed += _copy(near, far, 300_000 - passed)
                _copy(far, near, 4096)
    assert 150_000 < passed <= 300_000
    assert door.num_cut_off == 1
    wire.close()
    door.close()


def _copy(source: sockets.socket, sink: sockets.socket, most: int) -> int:
    """Pass on what is there, if anything is."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        return sink.send(source.recv(min(most, 4096))) if most else 0
    return 0

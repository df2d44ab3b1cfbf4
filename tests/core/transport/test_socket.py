"""The line to workers elsewhere: what is sent arrives, deaths are told, and strangers change nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from enginebay.errors import StartFailed
from enginebay.interfaces import WorkerChannel
from enginebay.runtime import ChannelClosed
from enginebay.transport import MAX_FRAME_BYTES, encode_reply, socket_wire
from enginebay.transport.curve import KeyPair, new_keys, secure_client
from enginebay.transport.socket import Beat, SocketChannel
from enginebay.transport.socket_wire import BEAT, HELLO, LEAVE, REPLY, WELCOME, Ticket
from support.lines import Echo, Line, private_folder, wait_until

MakeLine = Callable[..., Line]


@pytest.fixture(params=["tcp", "ipc"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "tcp":
        return "127.0.0.1"
    return str(private_folder(tmp_path_factory.mktemp("s", numbered=True)))


@pytest.fixture
def make_line(address: str) -> Iterator[MakeLine]:
    made: list[Line] = []

    def make(ranks: int = 1, at: str = address, **options: Any) -> Line:
        made.append(Line(at, ranks, **options))
        return made[-1]

    yield make
    for line in made:
        line.line.close()


def ticket_of(line: Line, rank: int = 0) -> Ticket:
    return msgspec.msgpack.decode(line.line.tickets[rank], type=Ticket)


class Stranger:
    """A peer that speaks ZeroMQ and keeps none of our rules."""

    def __init__(self, ticket: Ticket, *, routing_id: bytes | None = None, keys: KeyPair | None = None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.ROUTING_ID, ticket.routing_id if routing_id is None else routing_id)
        if ticket.server_public:
            own = KeyPair(public=ticket.public, secret=ticket.secret) if keys is None else keys
            secure_client(self.socket, own, ticket.server_public)
        self.socket.connect(ticket.address)

    def close(self) -> None:
        self._context.destroy(linger=0)


def test_calls_and_answers_cross_in_order(make_line: MakeLine) -> None:
    line = make_line(2)
    echoes = [Echo(line.channel(rank)) for rank in (1, 0)]
    assert sorted(info.rank for info in line.hellos) == [0, 1]
    sizes = [0, 1, 1000, 300_000, 7, 5_000_000, 3]
    asked = [line.ask(bytes([size % 251]) * size) for size in sizes]
    wait_until(lambda: len(line.replies) == 2 * len(sizes), "all answers")
    for rank in (0, 1):
        mine = [reply for reply in line.replies if reply[0] == rank]
        assert [reply[2] for reply in mine] == asked
        assert [reply[3] for reply in mine] == [bytes([size % 251]) * size for size in sizes]
    line.line.close()
    assert all(echo.join() for echo in echoes)
    assert (line.lost, line.left, line.line.num_dropped) == ([], [], 0)


def test_a_call_goes_to_the_ranks_that_it_names(make_line: MakeLine) -> None:
    line = make_line(2)
    for rank in (0, 1):
        Echo(line.channel(rank))
    assert line.works(1)
    assert line.works(0)
    assert [reply[0] for reply in line.replies] == [1, 0]


def test_the_channel_is_what_serve_takes(make_line: MakeLine) -> None:
    channel = make_line().channel()
    assert isinstance(channel, WorkerChannel)
    with pytest.raises(TimeoutError, match="no call before the deadline"):
        channel.receive(time.monotonic() + 0.01)
    assert not channel.closed()
    channel.close()
    channel.close()
    assert channel.closed()
    assert channel.receive(None) is None


def test_heartbeats_carry_phase_and_step(make_line: MakeLine) -> None:
    line = make_line()
    assert line.line.heartbeat(0) == Beat()
    channel = line.channel()
    assert line.line.heartbeat(0).phase == "start"
    for said, phase, step in (("idle", "idle", -1), ("execute_model 41", "execute_model", 41), ("a b", "a b", -1)):
        channel.heartbeat(said)
        wait_until(lambda phase=phase: line.line.heartbeat(0).phase == phase, "the beat")  # type: ignore[misc]  # no type for a default
        beat = line.line.heartbeat(0)
        assert (beat.step, beat.at_ns > 0) == (step, True)
    channel.close()


def test_the_engines_close_is_heard_by_workers(make_line: MakeLine) -> None:
    line = make_line()
    channel = line.channel()
    line.line.close()
    line.line.close()
    assert channel.receive(None) is None
    with pytest.raises(ChannelClosed, match="the engine has hung up"):
        channel.reply(0, 1, b"late")
    channel.heartbeat("idle")
    channel.close()
    with pytest.raises(ChannelClosed, match="the line to the workers is closed"):
        line.ask()


def test_a_worker_that_leaves_in_good_order_is_not_lost(make_line: MakeLine) -> None:
    line = make_line()
    line.channel().close()
    wait_until(lambda: line.left == [0], "the leave")
    line.ask()
    time.sleep(0.05)
    assert line.lost == []


def test_what_a_worker_said_last_comes_before_its_loss(make_line: MakeLine) -> None:
    for _ in range(40):  # the loss is seen in another way than the message, and often sooner
        line = make_line()
        channel = line.channel()
        channel.reply(0, 1, b"the last answer")
        channel.close()
        wait_until(lambda line=line: line.left or line.lost, "the end")  # type: ignore[misc]  # no type for a default
        assert (line.replies, line.left, line.lost) == ([(0, 0, 1, b"the last answer")], [0], [])
        line.line.close()


def test_last_words_are_told(make_line: MakeLine) -> None:
    line = make_line()
    line.channel().close("ValueError: the line\nbroke")
    wait_until(lambda: line.lost, "the loss")
    assert line.lost == [(0, "ValueError: the line\nbroke")]


def test_a_rank_that_never_came_is_lost_at_the_first_call(make_line: MakeLine) -> None:
    line = make_line(2)
    echo = Echo(line.channel(0))
    line.ask()
    wait_until(lambda: line.lost and line.replies, "the loss of one and the answer of the other")
    assert line.lost == [(1, "it has not connected")]
    assert line.works(0)
    line.line.close()
    assert echo.join()


WORKER = """
import os, sys, time
from pathlib import Path
from enginebay.messages import WorkerInfo
from enginebay.transport.socket import SocketChannel
info = WorkerInfo(rank=0, local_rank=0, incarnation="life-0", host="here", pid=os.getpid())
channel = SocketChannel.connect(sys.stdin.buffer.read(), info, time.monotonic() + 60)
while (frame := channel.receive(None)) is not None:
    pass
"""

ENGINE = """
import os, sys, time
from support.lines import Line
line = Line(sys.argv[1])
os.write(1, line.line.tickets[0])
os.close(1)
time.sleep(600)
"""


def test_a_killed_worker_is_told_without_a_call(make_line: MakeLine) -> None:  # X4
    line = make_line(2)
    echo = Echo(line.channel(1))
    worker = subprocess.Popen([sys.executable, "-P", "-c", WORKER], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.write(line.line.tickets[0])
    worker.stdin.close()
    wait_until(lambda: len(line.hellos) == 2, "HELLO")
    worker.kill()
    worker.wait()
    wait_until(lambda: line.lost, "the loss")
    assert line.lost == [(0, "its connection was lost")]
    assert line.works(1)
    line.line.close()
    assert echo.join()


def test_a_silent_worker_is_lost_although_its_connection_stands(make_line: MakeLine) -> None:
    line = make_line(heartbeat=0.1)
    worker = subprocess.Popen([sys.executable, "-P", "-c", WORKER], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.write(line.line.tickets[0])
    worker.stdin.close()
    wait_until(lambda: line.hellos, "HELLO")
    psutil.Process(worker.pid).suspend()
    wait_until(lambda: line.lost, "the loss")
    worker.kill()
    worker.wait()


def test_workers_notice_a_killed_engine(address: str) -> None:  # X12
    folders = [str(Path(__file__).parents[2])]
    engine = subprocess.Popen(
        [sys.executable, "-P", "-c", ENGINE, address],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    assert engine.stdout is not None
    ticket = engine.stdout.read()
    info = Line.info(None, 0)  # type: ignore[arg-type]  # it needs no line
    channel = SocketChannel.connect(ticket, info, time.monotonic() + 60)
    engine.kill()
    engine.wait()
    engine.stdout.close()
    assert channel.receive(None) is None
    assert channel.closed()
    channel.close()
    for left in Path(address).glob("*.sock") if "/" in address else ():
        left.unlink()  # whoever cleans the run folders of dead engines does it elsewhere


def test_a_busy_worker_is_not_taken_for_silent(make_line: MakeLine) -> None:
    line = make_line(heartbeat=0.1)
    channel = line.channel()
    time.sleep(1.0)  # ten heartbeats in which nobody of ours says anything
    assert line.lost == []
    Echo(channel)
    assert line.works(0)


def test_strangers_are_dropped_and_change_nothing(make_line: MakeLine) -> None:
    line = make_line()
    echo = Echo(line.channel())
    ticket = ticket_of(line)
    guesses = [Stranger(ticket, routing_id=b"a guess"), Stranger(ticket)]  # the second has a name that is in use
    for stranger in guesses:
        for kind in (HELLO, REPLY, BEAT, LEAVE, WELCOME):
            stranger.socket.send_multipart([kind, encode_reply(0, 1, b"forged")])
        stranger.socket.send_multipart([b"x"] * 50)
    wait_until(lambda: line.line.num_dropped >= 6, "the drop of all that the first has said")
    assert line.works(0)
    assert (line.lost, line.left) == ([], [])
    assert all(reply[3] == b"still there?" for reply in line.replies)
    for stranger in guesses:
        stranger.close()
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_hello_of_another_life_or_rank_is_dropped(make_line: MakeLine) -> None:  # X1
    line = make_line(2)
    for info in (line.info(0, "life-before"), line.info(1)):
        with pytest.raises(TimeoutError, match="did not answer the HELLO"):
            SocketChannel.connect(line.line.tickets[0], info, time.monotonic() + 0.2)
    assert (line.hellos, line.line.num_dropped) == ([], 2)


def test_damaged_parts_of_a_worker_are_dropped_and_counted(make_line: MakeLine) -> None:
    line = make_line()
    ticket = ticket_of(line)
    worker = Stranger(ticket)
    hello = msgspec.msgpack.encode(line.info())
    bad = [
        [b""],
        [],
        [REPLY],
        [HELLO, b""],
        [HELLO, b"\xc1"],
        [HELLO, b"\x91" * 5000],
        [HELLO, hello + b"\0"],
        [REPLY, encode_reply(0, 1, b"before HELLO")],
    ]
    after = [
        [REPLY, b"short"],
        [HELLO, hello],
        [BEAT, b"x" * 5000],
        [LEAVE, b"x" * 50_000],
        [b"?", b""],
        [b"", b"", b"", b""],
        [REPLY, encode_reply(0, 1, b"x"), b""],
    ]
    for parts in bad:
        if parts:
            worker.socket.send_multipart(parts)
    worker.socket.send_multipart([HELLO, hello])
    wait_until(lambda: line.hellos, "HELLO")
    for parts in after:
        worker.socket.send_multipart(parts)
    worker.socket.send_multipart([REPLY, encode_reply(2, 3, b"good")])
    worker.socket.send_multipart([BEAT, b"\xff\x1b[2J idle"])
    wait_until(lambda: line.replies, "the good one")
    wait_until(lambda: line.line.heartbeat(0).phase.endswith("idle"), "the beat")
    assert line.replies == [(0, 2, 3, b"good")]
    assert line.line.num_dropped == len(bad) - 1 + len(after)
    assert line.line.heartbeat(0).phase.isprintable()
    assert line.lost == []
    worker.close()


@pytest.mark.parametrize("address", ["127.0.0.1"])
def test_no_key_and_a_wrong_key_are_turned_away(make_line: MakeLine, address: str) -> None:
    line = make_line()
    good = ticket_of(line)
    other = new_keys()
    wrong = msgspec.structs.replace(good, public=other.public, secret=other.secret)
    with pytest.raises(ChannelClosed, match=r"the engine at tcp://127\.0\.0\.1:\d+ refuses the key of rank 0"):
        SocketChannel.connect(msgspec.msgpack.encode(wrong), line.info(), time.monotonic() + 30)
    plain = msgspec.structs.replace(good, server_public=b"")
    pinned = msgspec.structs.replace(good, server_public=other.public)
    for ticket in (plain, pinned):
        with pytest.raises(TimeoutError, match="did not"):
            SocketChannel.connect(msgspec.msgpack.encode(ticket), line.info(), time.monotonic() + 0.3)
    assert (line.hellos, line.line.num_dropped) == ([], 0)
    echo = Echo(line.channel())
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_ticket_is_for_its_own_rank(make_line: MakeLine) -> None:
    line = make_line(2)
    tickets = [ticket_of(line, rank) for rank in (0, 1)]
    assert tickets[0].routing_id != tickets[1].routing_id
    assert len(tickets[0].routing_id) == 16
    for ticket in tickets:
        assert ticket.secret.decode() not in repr(ticket) or not ticket.secret
        assert str(ticket.routing_id) not in repr(ticket)
    if tickets[0].secret:
        assert tickets[0].secret != tickets[1].secret
    with pytest.raises(msgspec.MsgspecError):
        SocketChannel.connect(b"no ticket", line.info(), None)


def connected(ticket: Ticket) -> socket.socket:
    if ticket.address.startswith("ipc://"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(ticket.address.removeprefix("ipc://"))
    else:
        host, _, port = ticket.address.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(60)
    return peer


def is_closed(peer: socket.socket) -> bool:
    """Whether the other side hangs up."""
    try:
        while peer.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 20, os.urandom(4096), b"\0" * 4096])
def test_a_peer_that_does_not_speak_zeromq_is_cut_off(make_line: MakeLine, garbage: bytes) -> None:
    line = make_line()
    echo = Echo(line.channel())
    with connected(ticket_of(line)) as peer:
        with contextlib.suppress(OSError):  # it was quicker
            peer.sendall(garbage)
            peer.shutdown(socket.SHUT_WR)
        assert is_closed(peer)
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_frame_that_announces_a_gigabyte_ends_its_connection(make_line: MakeLine) -> None:  # X8
    line = make_line()
    echo = Echo(line.channel())
    memory = psutil.Process().memory_info().rss
    mechanism = b"NULL" if ticket_of(line).address.startswith("ipc") else b"CURVE"
    with connected(ticket_of(line)) as peer:
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32))
        peer.sendall(b"\x06" + (1 << 30).to_bytes(8, "big") + b"some of it")  # a command as long as that
        assert is_closed(peer)
    assert psutil.Process().memory_info().rss - memory < 100 << 20
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_worker_that_sends_too_much_is_lost(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:  # X8
    monkeypatch.setattr(socket_wire, "MAX_FRAME_BYTES", 100_000)
    line = make_line()
    worker = Stranger(ticket_of(line))
    worker.socket.send_multipart([HELLO, msgspec.msgpack.encode(line.info())])
    wait_until(lambda: line.hellos, "HELLO")
    worker.socket.send_multipart([REPLY, encode_reply(0, 1, bytes(99_000))])
    wait_until(lambda: line.replies, "what is within the limit")
    worker.socket.send_multipart([REPLY, encode_reply(0, 2, bytes(200_000))])
    wait_until(lambda: line.lost, "the loss")
    assert [len(reply[3]) for reply in line.replies] == [99_000]
    worker.close()


def test_the_limit_is_that_of_a_frame(make_line: MakeLine) -> None:
    line = make_line()
    assert line.line._router.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME_BYTES + 1024


def test_a_worker_that_reads_nothing_is_lost_and_the_others_go_on(make_line: MakeLine) -> None:
    line = make_line(2)
    stuck = line.channel(0)
    echo = Echo(line.channel(1))
    for _ in range(5000):
        line.ask(bytes(10_000), (0,))
        if line.lost:
            break
    wait_until(lambda: line.lost, "the loss")
    assert line.lost == [(0, "it has stopped reading its calls")]
    assert line.works(1)
    stuck.close()
    line.line.close()
    assert echo.join()


def test_a_callback_that_raises_loses_every_rank_and_says_why(make_line: MakeLine) -> None:
    line = make_line(2)
    channels = [line.channel(rank) for rank in (0, 1)]
    line.line._on_reply = lambda *reply: 1 / 0  # type: ignore[assignment, return-value]  # the fault under test
    channels[0].reply(0, 1, b"")
    wait_until(lambda: len(line.lost) == 2, "the losses")
    assert line.lost[0][1] == "the line to the workers has failed: ZeroDivisionError: division by zero"
    for channel in channels:
        assert channel.receive(None) is None
        channel.close()


def test_it_may_be_closed_in_a_callback(make_line: MakeLine) -> None:
    line = make_line()
    channel = line.channel()
    line.line._on_reply = lambda *reply: line.line.close()
    channel.reply(0, 1, b"")
    assert channel.receive(None) is None
    channel.close()


def test_nothing_is_left_of_a_closed_line(make_line: MakeLine, address: str) -> None:  # X13
    before = set(os.listdir("/proc/self/fd"))
    recorded: list[tuple[str, str]] = []
    line = make_line(record=lambda kind, name: recorded.append((kind, name)))
    channel = line.channel()
    if "/" in address:
        (path,) = Path(address).iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert recorded == [("socket", str(path))]
    else:
        assert recorded == []
    line.line.close()
    channel.close()
    if "/" in address:
        assert list(Path(address).iterdir()) == []
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before, "descriptors to be closed")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("enginebay-")]


def test_two_lines_share_nothing(make_line: MakeLine) -> None:  # X11
    lines = [make_line(), make_line()]
    assert lines[0].line.address != lines[1].line.address
    for line in lines:
        Echo(line.channel())
    assert all(line.works(0) for line in lines)


def test_tcp_is_bound_to_the_named_address_alone() -> None:
    line = Line("127.0.0.1")
    port = int(line.line.address.rpartition(":")[2])
    listening = [
        c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port
    ]
    line.line.close()
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("where", "words"),
    [("192.0.2.77", "Cannot assign requested address"), ("/no/such/folder", "No such file"), ("/x" * 80, "too long")],
)
def test_an_address_that_cannot_be_bound_is_refused(where: str, words: str) -> None:
    with pytest.raises(StartFailed) as caught:
        Line(where)
    assert str(caught.value).startswith(f"the engine cannot listen for its workers at {where}: ")
    assert words in str(caught.value)
    assert str(caught.value).endswith("name an address of this machine, or a folder with a short path")


def test_a_worker_waits_for_an_engine_that_is_not_there(tmp_path: Path) -> None:
    ticket = Ticket(rank=0, address=f"ipc://{tmp_path}/s", routing_id=b"x", heartbeat=1.0)
    with pytest.raises(TimeoutError, match=f"the engine at ipc://{tmp_path}/s did not let rank 0 in before its time"):
        SocketChannel.connect(
            msgspec.msgpack.encode(ticket),
            Line.info(None, 0),  # type: ignore[arg-type]  # it needs no line
            time.monotonic() + 0.3,
        )

"""The line to workers elsewhere: what is sent arrives, both ends close in good order, and nothing is left."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from enginebay.errors import StartFailed
from enginebay.interfaces import WorkerChannel
from enginebay.runtime import ChannelClosed
from enginebay.transport.socket import Beat, SocketChannel
from enginebay.transport.socket_wire import Ticket
from support.lines import Echo, Line, MakeLine, wait_until


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

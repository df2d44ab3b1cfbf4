"""Workers and engines that die, hang or never come: the other end of the line is told, and the rest goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from enginebay.transport.socket import SocketChannel
from support.lines import Echo, Line, MakeLine, wait_until

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

"""Whoever waits at a shared ring, for room or for a frame, is woken: by what it waits for, a loss, or the close."""

from __future__ import annotations

import os
import time

import pytest

from enginebay.runtime import ChannelClosed
from enginebay.transport import decode_reply
from enginebay.transport.shared import Beat, EngineEnd
from support.rings import ECHO, SLEEPS, SMALL, Sender, asleep, attach_here, collect, echoed, rings, spawn, until


def _fill(end: EngineEnd, ranks: tuple[int, ...] | None = None) -> None:
    with pytest.raises(TimeoutError, match=r"no room in the ring: ranks? 0.* did not read until the deadline"):
        _send_on(end, ranks)


def _send_on(end: EngineEnd, ranks: tuple[int, ...] | None = None) -> None:
    while True:
        end.send(b"x", ranks, time.monotonic())


def test_the_writer_of_a_full_ring_is_woken_by_the_loss_of_the_reader() -> None:  # X7
    with rings(SLEEPS, **SMALL) as made:
        _fill(made.end)
        sender = Sender(lambda: made.end.send(b"more", None, None))
        until(lambda: asleep(sender.thread))
        made.workers[0].kill()
        made.workers[0].wait()
        made.end.lose(0, "killed")
        sender.join()
        assert sender.raised is None
        assert made.end.lost == {0: "killed"}


@pytest.mark.parametrize("clears", ["receive", "reply"])
def test_the_writer_of_a_full_ring_is_woken_by_whatever_clears_the_readers_bell(clears: str) -> None:  # X7
    end = EngineEnd.create([0], **SMALL)
    worker = attach_here(end, 0)
    _fill(end)
    sender = Sender(lambda: end.send(b"more", None, None))
    until(lambda: asleep(sender.thread))
    while worker._calls.ready():  # a reader that misses, by the order of loads, that somebody waits for room
        worker._calls.take()

    def clear() -> None:
        if clears == "receive":
            assert worker.receive(None) == b"more"
        else:
            for _ in range(20):
                worker.reply(1, 1, b"x" * 64)  # more than there is room for

    clearer = Sender(clear)
    sender.join()
    while clearer.thread.is_alive():
        end.take_replies()
    clearer.join()
    assert sender.raised is clearer.raised is None
    worker.close()
    end.close()


def test_a_lost_rank_holds_up_nobody() -> None:  # X7
    with rings({0: SLEEPS, 1: ECHO}, (0, 1), **SMALL) as made:
        _fill(made.end, (0,))
        made.end.lose(0)
        assert echoed(made.end, 100) == [b"%d" % number for number in range(100)]


def test_a_worker_that_left_holds_up_nobody() -> None:
    with rings({0: "end.close()", 1: ECHO}, (0, 1), **SMALL) as made:
        assert len(echoed(made.end, 100)) == 100
        assert made.end.lost == {}


def test_the_writer_of_a_full_ring_is_woken_by_close() -> None:  # X7
    with rings(SLEEPS, **SMALL) as made:
        _fill(made.end)
        sender = Sender(lambda: made.end.send(b"more", None, None))
        second = Sender(lambda: made.end.send(b"more", None, None))
        until(lambda: asleep(sender.thread) or asleep(second.thread))
        made.end.close()
        for one in (sender, second):
            one.join()
            assert isinstance(one.raised, ChannelClosed)
        with pytest.raises(ChannelClosed):
            made.end.take_replies()
        assert made.end.heartbeat(0) == Beat()


def test_a_full_ring_keeps_senders_no_longer_than_their_deadlines() -> None:
    with rings({0: SLEEPS, 1: SLEEPS}, (0, 1), **SMALL) as made:
        with pytest.raises(TimeoutError, match="ranks 0, 1 did not read until the deadline"):
            _send_on(made.end)
        sender = Sender(lambda: made.end.send(b"more", None, None))
        until(lambda: asleep(sender.thread))
        with pytest.raises(TimeoutError, match="busy until the deadline"):
            made.end.send(b"more", None, time.monotonic() + 0.01)
        made.end.close()
        sender.join()


def test_an_endless_reader_is_woken_by_close_and_reads_what_was_sent_before() -> None:  # X7
    code = "print('up', flush=True)\nframe = 1\nwhile frame: frame = end.receive(None); print(frame, flush=True)\n"
    with rings(code + "print(end.closed())") as made:
        out = made.workers[0].stdout
        assert out is not None
        assert out.readline() == "up\n"
        made.end.send(b"last")
        made.end.close()
        assert out.read() == "b'last'\nNone\nTrue\n"
        assert made.workers[0].wait(60) == 0


def test_the_engines_death_closes_the_line() -> None:
    read, write = os.pipe()
    end = EngineEnd.create([0])
    code = "end.watch_fd(int(sys.argv[2]))\nprint('up', flush=True)\nprint(end.receive(None), end.closed())\n"
    worker = spawn(end, 0, code, pass_fds=[read], args=[str(read)])
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        os.close(write)  # what the kernel does when the engine is killed: nobody says so in the ring
        assert worker.stdout.read() == "None True\n"
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()
        os.close(read)
        end.close()


def test_the_writer_of_a_full_reply_ring_waits_for_the_engine_and_is_woken_by_close() -> None:  # X7
    code = "for number in range(100): end.reply(1, number, b'y' * 100)\nprint('all', flush=True)\n"
    code += "try:\n    while True: end.reply(1, 1, b'')\nexcept ConnectionError as error: print(error)\n"
    with rings(code, **SMALL) as made:
        replies = collect(made.end, 100)
        assert [decode_reply(frame)[1] for _, frame in replies[:100]] == list(range(100))
        made.end.close()
        out = made.workers[0].stdout
        assert out is not None
        assert out.readline() == "all\n"
        assert out.readline().startswith("the engine has closed the line")


@pytest.mark.parametrize("lock", ["_reading", "_sending"])
def test_a_heartbeat_is_read_whatever_the_line_is_in(lock: str) -> None:
    """Whoever ends an executor in the collector of garbage asks for it, maybe from within the line itself."""
    end = EngineEnd.create([0])
    worker = attach_here(end, 0)
    worker.heartbeat("load_model")
    read: list[str] = []
    with getattr(end, lock):
        Sender(lambda: read.append(end.heartbeat(0).phase)).join()
    worker.close()
    end.close()
    assert read == ["load_model"]
    assert end.heartbeat(0) == Beat()

"""The line between an engine and its workers on one host: frames arrive whole, in order and by deadlines."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from enginebay.errors import CapabilityError
from enginebay.interfaces import WorkerChannel
from enginebay.runtime import ChannelClosed
from enginebay.transport import DamagedMessage, UnsendableMessage, decode_reply, encode_reply
from enginebay.transport.memory import check_machine
from enginebay.transport.shared import Beat, EngineEnd, WorkerEnd
from support.rings import ECHO, Sender, asleep, attach_here, collect, rings, until


def test_a_worker_end_is_a_worker_channel() -> None:
    end = EngineEnd.create([3])
    worker = attach_here(end, 3)
    assert isinstance(worker, WorkerChannel)
    end.send(b"a call")
    assert worker.receive(None) == b"a call"
    worker.reply(7, 8, b"its answer")
    [(rank, frame)] = end.take_replies()
    assert (rank, *decode_reply(frame)) == (3, 7, 8, b"its answer")
    worker.close()
    end.close()


def test_every_rank_gets_what_is_for_it_and_one_descriptor_tells_of_all_replies() -> None:
    with rings(ECHO, (0, 1, 5)) as made:
        for number in range(50):
            made.end.send(b"all %d" % number)
            made.end.send(b"some %d" % number, (5, 1))
        got: dict[int, list[bytes]] = {0: [], 1: [], 5: []}
        for rank, frame in collect(made.end, 50 * 5):
            generation, call_id, payload = decode_reply(frame)
            assert (generation, call_id) == (1, rank)
            got[rank].append(payload)
        every = [b"%s %d" % (word, number) for number in range(50) for word in (b"all", b"some")]
        assert got == {0: every[::2], 1: every, 5: every}


def test_large_frames_are_whole_and_in_order_with_their_neighbours() -> None:  # X8
    frames = [os.urandom(size) for size in (1, 500, 70_000, 0, 3, 1_000_000, 129, 5)]
    with rings(ECHO, (0, 1), slots=16, slot_bytes=256) as made:
        sender = Sender(lambda: [made.end.send(frame) for frame in frames] and None)  # type: ignore[func-returns-value]  # for its effect
        replies = collect(made.end, 2 * len(frames))
        sender.join()
        for rank in (0, 1):
            assert [frame[16:] for r, frame in replies if r == rank] == frames


def test_a_frame_over_the_limit_is_refused_before_memory_is_taken() -> None:  # X8
    end = EngineEnd.create([0], max_frame_bytes=1000)
    worker = attach_here(end, 0)
    with pytest.raises(UnsendableMessage, match=r"^a frame of 1,001 bytes does not cross: at most 1,000 do$"):
        end.send(bytes(1001))
    with pytest.raises(UnsendableMessage, match=r"^a reply of 1,001 bytes does not cross: at most 1,000 do$"):
        worker.reply(1, 1, bytes(1001))
    end.send(bytes(1000))  # nothing was sent, and the line is in order
    assert worker.receive(None) == bytes(1000)
    worker.reply(1, 1, bytes(1000))
    assert end.take_replies() == [(0, encode_reply(1, 1, bytes(1000)))]
    worker.close()
    end.close()


def test_what_is_no_bytes_is_refused_and_leaves_the_line_in_order() -> None:  # X15
    end = EngineEnd.create([0])
    worker = attach_here(end, 0)
    for thing in ("text", [1], threading.Lock(), test_receive_has_a_deadline):
        with pytest.raises(TypeError):
            end.send(thing)  # type: ignore[arg-type]  # the fault under test
        with pytest.raises(TypeError):
            worker.reply(1, 1, thing)  # type: ignore[arg-type]  # the fault under test
    end.send(b"after")
    assert worker.receive(None) == b"after"
    worker.reply(1, 2, b"too")
    assert [decode_reply(frame) for _, frame in end.take_replies()] == [(1, 2, b"too")]
    worker.close()
    end.close()


def test_receive_has_a_deadline() -> None:
    end = EngineEnd.create([0])
    worker = attach_here(end, 0)
    with pytest.raises(TimeoutError, match="no call before the deadline"):
        worker.receive(time.monotonic() + 0.01)
    end.send(b"x")
    assert worker.receive(time.monotonic()) == b"x"
    worker.close()
    worker.close()
    assert worker.closed()
    with pytest.raises(ChannelClosed):
        worker.reply(1, 1, b"")
    end.close()
    end.close()


@pytest.mark.parametrize("deadline", [1e12, float("inf")])
def test_a_deadline_may_be_as_late_as_it_likes(deadline: float) -> None:
    end = EngineEnd.create([0], slots=2, slot_bytes=64)
    worker = attach_here(end, 0)
    end.send(b"1", None, deadline)
    end.send(b"2", None, deadline)
    sender = Sender(lambda: end.send(b"3", None, deadline))
    until(lambda: asleep(sender.thread))
    assert [worker.receive(deadline) for _ in range(3)] == [b"1", b"2", b"3"]
    sender.join()
    reader = Sender(lambda: print(worker.receive(deadline)))
    until(lambda: asleep(reader.thread))
    end.close()
    reader.join()
    assert reader.raised is None
    worker.close()


def test_wake_shows_at_the_replies_descriptor() -> None:
    end = EngineEnd.create([0])
    poll = select.poll()
    poll.register(end.fileno_of_replies(), select.POLLIN)
    assert not poll.poll(0)
    end.wake()
    assert poll.poll(0)
    assert end.take_replies() == []
    assert not poll.poll(0)
    end.close()
    end.wake()  # the number is perhaps another's by now: nothing is written to it


def test_heartbeats_are_read_without_asking() -> None:
    end = EngineEnd.create([0, 1])
    worker = attach_here(end, 1)
    assert end.heartbeat(1) == Beat()
    before = time.monotonic_ns()
    worker.heartbeat("execute_model 41")
    beat = end.heartbeat(1)
    assert (beat.phase, beat.step, beat.budget_s) == ("execute_model", 41, 0.0)
    assert before <= beat.at_ns <= time.monotonic_ns()
    worker.heartbeat("compile +90")
    assert (end.heartbeat(1).phase, end.heartbeat(1).step, end.heartbeat(1).budget_s) == ("compile", -1, 90.0)
    worker.heartbeat("\x1b[31m" + "é" * 100)
    assert end.heartbeat(1).phase.startswith("?[31mé")
    assert end.heartbeat(0) == Beat()
    worker.close()
    worker.heartbeat("after the end")
    end.close()


def test_heartbeats_are_never_put_together_of_two() -> None:
    code = "n = 0\nwhile not end.closed():\n    n += 1\n    end.heartbeat(str(n % 10) * 60 + f' {n % 10} +{n % 10}')\n"
    with rings(code) as made:
        until(lambda: made.end.heartbeat(0).at_ns > 0)
        seen = set()
        last = 0
        for _ in range(20_000):
            beat = made.end.heartbeat(0)
            assert len(set(beat.phase)) == 1
            assert beat.phase[0] == str(beat.step) == str(int(beat.budget_s))
            assert beat.at_ns >= last
            last = beat.at_ns
            seen.add(beat.step)
        assert len(seen) > 1


@pytest.mark.parametrize("ranks", [[], [1, 1], list(range(65))], ids=["none", "one twice", "too many"])
def test_ranks_that_no_ring_serves(ranks: list[int]) -> None:
    with pytest.raises(CapabilityError, match="one shared ring serves 1 to 64 ranks, each once"):
        EngineEnd.create(ranks)


def test_a_machine_of_another_order_is_refused_by_name() -> None:
    with pytest.raises(CapabilityError) as caught:
        check_machine("aarch64")
    assert str(caught.value) == (
        "shared-memory rings need the store order of x86_64, and this machine is aarch64; choose an executor that "
        "talks through sockets"
    )


def test_a_rank_that_is_not_there() -> None:
    end = EngineEnd.create([0])
    with pytest.raises(KeyError):
        end.send(b"x", (1,))
    end.lose(1)
    assert end.lost == {}
    end.close()


def test_a_ticket_is_not_believed() -> None:
    end = EngineEnd.create([0])
    ticket, fds = end.ticket(0)
    with pytest.raises(DamagedMessage, match="are not a ticket of shared rings"):
        WorkerEnd.attach(ticket[:-1])
    end.close()
    with pytest.raises(DamagedMessage, match="the ticket of rank 0 names what is not there"):
        WorkerEnd.attach(ticket)
    assert len(set(fds)) == 5

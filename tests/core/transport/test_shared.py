"""The line between an engine and its workers on one host, with processes at its other end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from enginebay.errors import CapabilityError
from enginebay.interfaces import WorkerChannel
from enginebay.runtime import ChannelClosed
from enginebay.transport import DamagedMessage, UnsendableMessage, decode_reply, encode_reply
from enginebay.transport.memory import check_machine
from enginebay.transport.shared import Beat, EngineEnd, WorkerEnd
from support.rings import ECHO, attach_here, collect, rings, spawn

SMALL = {"slots": 8, "slot_bytes": 64}
CHILD = """\
import os
for fd in range(3, 1000):
    try:
        print(os.readlink(f"/proc/self/fd/{fd}"), end=" ")
    except OSError:
        pass
print(".")
"""
SLEEPS = "print('up', flush=True)\ntime.sleep(600)\n"


def _until(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _asleep(thread: threading.Thread) -> bool:
    """Whether the thread waits in the kernel, for a doorbell."""
    assert thread.is_alive()
    with open(f"/proc/self/task/{thread.native_id}/wchan") as file:
        return "poll" in file.read()


class _Sender:
    """A thread that sends, and what came of it."""

    def __init__(self, send: Callable[[], None]) -> None:
        self.raised: BaseException | None = None
        self._send = send
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._send()
        except BaseException as error:
            self.raised = error

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def _fill(end: EngineEnd, ranks: tuple[int, ...] | None = None) -> None:
    with pytest.raises(TimeoutError, match=r"no room in the ring: ranks? 0.* did not read until the deadline"):
        _send_on(end, ranks)


def _send_on(end: EngineEnd, ranks: tuple[int, ...] | None = None) -> None:
    while True:
        end.send(b"x", ranks, time.monotonic())


def _echoed(end: EngineEnd, count: int) -> list[bytes]:
    """What comes back of so many frames, sent by a thread while this one takes the replies."""

    def send() -> None:
        for number in range(count):
            end.send(b"%d" % number, None, time.monotonic() + 60)

    sender = _Sender(send)
    frames = [frame[16:] for _, frame in collect(end, count)]
    sender.join()
    assert sender.raised is None
    return frames


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
        sender = _Sender(lambda: [made.end.send(frame) for frame in frames] and None)  # type: ignore[func-returns-value]  # for its effect
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


def test_the_writer_of_a_full_ring_is_woken_by_the_loss_of_the_reader() -> None:  # X7
    with rings(SLEEPS, **SMALL) as made:
        _fill(made.end)
        sender = _Sender(lambda: made.end.send(b"more", None, None))
        _until(lambda: _asleep(sender.thread))
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
    sender = _Sender(lambda: end.send(b"more", None, None))
    _until(lambda: _asleep(sender.thread))
    while worker._calls.ready():  # a reader that misses, by the order of loads, that somebody waits for room
        worker._calls.take()

    def clear() -> None:
        if clears == "receive":
            assert worker.receive(None) == b"more"
        else:
            for _ in range(20):
                worker.reply(1, 1, b"x" * 64)  # more than there is room for

    clearer = _Sender(clear)
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
        assert _echoed(made.end, 100) == [b"%d" % number for number in range(100)]


def test_a_worker_that_left_holds_up_nobody() -> None:
    with rings({0: "end.close()", 1: ECHO}, (0, 1), **SMALL) as made:
        assert len(_echoed(made.end, 100)) == 100
        assert made.end.lost == {}


def test_the_writer_of_a_full_ring_is_woken_by_close() -> None:  # X7
    with rings(SLEEPS, **SMALL) as made:
        _fill(made.end)
        sender = _Sender(lambda: made.end.send(b"more", None, None))
        second = _Sender(lambda: made.end.send(b"more", None, None))
        _until(lambda: _asleep(sender.thread) or _asleep(second.thread))
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
        sender = _Sender(lambda: made.end.send(b"more", None, None))
        _until(lambda: _asleep(sender.thread))
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
    sender = _Sender(lambda: end.send(b"3", None, deadline))
    _until(lambda: _asleep(sender.thread))
    assert [worker.receive(deadline) for _ in range(3)] == [b"1", b"2", b"3"]
    sender.join()
    reader = _Sender(lambda: print(worker.receive(deadline)))
    _until(lambda: _asleep(reader.thread))
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
        _until(lambda: made.end.heartbeat(0).at_ns > 0)
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


def test_an_idle_worker_uses_no_cpu() -> None:  # X7
    with rings("print('up', flush=True)\n" + ECHO) as made:
        out = made.workers[0].stdout
        assert out is not None
        assert out.readline() == "up\n"
        made.end.send(b"x")
        collect(made.end, 1)
        process = psutil.Process(made.workers[0].pid)
        _until(lambda: process.status() == psutil.STATUS_SLEEPING)
        before = process.num_ctx_switches().voluntary
        time.sleep(0.5)
        assert process.num_ctx_switches().voluntary == before  # it was not even woken
        assert process.status() == psutil.STATUS_SLEEPING


def test_what_a_worker_starts_does_not_hold_its_descriptors() -> None:
    code = f"""\
import subprocess
child = {CHILD!r}
print(subprocess.run([sys.executable, "-c", child], close_fds=False, capture_output=True, text=True).stdout, flush=True)
"""
    with rings(code) as made:
        out = made.workers[0].stdout
        assert out is not None
        line = out.readline()
        assert line.endswith(".\n")
        assert "eventfd" not in line
        assert "memfd" not in line


def test_a_worker_cannot_write_to_the_engines_memory() -> None:
    code = """\
import mmap
for fd, flags in ((end._ticket.engine_memory, os.O_RDWR), (end._ticket.worker_memory, os.O_RDWR)):
    again = os.open(f"/proc/self/fd/{fd}", flags)
    for act in (lambda: mmap.mmap(again, 4096), lambda: os.pwrite(again, b"x", 0), lambda: os.ftruncate(again, 0)):
        try:
            act()
            print("done", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""
    with rings(code) as made:
        out = made.workers[0].stdout
        assert out is not None
        no = "Operation not permitted\n"
        assert [out.readline() for _ in range(6)] == [no, no, no, "done\n", "done\n", no]


@pytest.mark.parametrize(
    ("head", "tail", "said"),
    [
        (1 << 60, 0, "its reply ring is damaged: no record can be there"),
        (0, 1000, "it says that it has read 1000 slots of 8"),
    ],
)
def test_a_rank_that_scribbles_over_its_memory_is_lost_and_the_others_go_on(head: int, tail: int, said: str) -> None:
    code = f"end._own_words[24] = {tail}\nend._own_words[0] = {head}\nos.eventfd_write(end._ticket.replies_bell, 1)\n"
    with rings({0: code + SLEEPS, 1: ECHO}, (0, 1), **SMALL) as made:
        out = made.workers[0].stdout
        assert out is not None
        assert out.readline() == "up\n"
        assert _echoed(made.end, 20) == [b"%d" % number for number in range(20)]
        assert list(made.end.lost) == [0]
        assert made.end.lost[0].startswith(said)


def test_a_worker_that_writes_without_end_does_not_keep_the_engine() -> None:
    code = "while True: end.reply(1, 1, b'')\n"
    with rings({0: code, 1: ECHO}, (0, 1), **SMALL) as made:
        collect(made.end, 1)
        made.end.send(b"x", (1,))
        _until(lambda: any(rank == 1 for rank, _ in made.end.take_replies()))


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


CLOSES = """\
import os, sys
from enginebay.transport.shared import EngineEnd
closed = [int(number) for number in sys.argv[1]]
for number in closed:
    os.close(number)
end = EngineEnd.create([0, 1])
ours = [*end.ticket(0)[1], *end.ticket(1)[1], *(pipe := os.pipe())]
for number in pipe:
    os.close(number)
end.close()
open_again = [number for number in closed if os.path.exists(f"/proc/self/fd/{number}")]
os._exit(0 if min(ours) > 2 and not open_again else 1)
"""


@pytest.mark.parametrize("closed", ["0", "1", "12", "012"])
def test_what_a_worker_inherits_is_never_a_standard_descriptor(closed: str) -> None:
    assert subprocess.run([sys.executable, "-P", "-c", CLOSES, closed], timeout=60).returncode == 0


def test_nothing_is_left() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with rings(ECHO, (0, 1, 2)) as made:
        made.end.send(b"x")
        collect(made.end, 3)
    assert set(os.listdir("/proc/self/fd")) == before
    with open("/proc/self/maps") as file:
        assert "enginebay-the broadcast ring" not in file.read()

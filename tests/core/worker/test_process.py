"""A worker's process before it serves: what it is told, how it answers, and that it hands nothing on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import StartFailed
from enginebay.messages import WorkerFailure, WorkerInfo
from enginebay.transport import encode_start_payload
from enginebay.transport.shared import EngineEnd
from enginebay.worker import process_start
from enginebay.worker.kernel import oom_kills
from enginebay.worker.process_start import ProcessStart, Ready, decode_ready, encode_start, read_start, say
from support.workers import payload

START = ProcessStart(payload=b"p", ticket=b"t", parent=1, ready=3, death=4, descriptors=(3, 4, 5), cpus=(0,))
MEMORY = "sys/fs/cgroup/memory.events"
HELLO = Ready(worker=WorkerInfo(rank=1, local_rank=1, incarnation="i", host="h", pid=7))


def piped(frame: bytes) -> int:
    """The reading end of a pipe that holds the frame and has ended."""
    reads, writes = os.pipe()
    os.write(writes, frame)
    os.close(writes)
    return reads


def test_a_start_message_crosses() -> None:
    assert read_start(piped(encode_start(START))) == START


def test_a_start_message_is_bounded_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_start, "MAX_START", 40)
    with pytest.raises(StartFailed, match=r"^a worker's start message has \d+ bytes, and at most 40 are sent$"):
        encode_start(START)
    with pytest.raises(ValueError, match=r"^the start message has over 40 bytes$"):
        read_start(piped(b"x" * 41))


@given(st.one_of(st.binary(max_size=200), st.builds(lambda cut: encode_start(START)[:cut], st.integers(0, 60))))
def test_damaged_bytes_are_one_error(frame: bytes) -> None:
    for read in (lambda: read_start(piped(frame)), lambda: decode_ready(frame)):
        try:
            read()
        except ValueError as error:
            assert " no " in str(error)  # noqa: PT017  # which of both is raised, and whether, is the draw's


def test_the_first_word_is_hello_or_what_went_wrong() -> None:
    failure = WorkerFailure(phase="start", error_type="ValueError", message="no")
    for word in (HELLO, failure):
        reads, writes = os.pipe()
        say(writes, word)
        with open(reads, "rb") as file:
            assert decode_ready(file.read()) == word
    with pytest.raises(ValueError, match="over 1048576 bytes"):
        decode_ready(b"x" * (1 << 20) + b"x")


class Spawned:
    """A worker's process started by hand."""

    def __init__(self, *, parent: int | None = None, told: bytes | None = None) -> None:
        self.line = EngineEnd.create([0], slots=64, slot_bytes=256)
        ticket, fds = self.line.ticket(0)
        self.ready, ready = os.pipe()
        death, self.death = os.pipe()
        message = os.memfd_create("start")
        start = ProcessStart(
            payload=encode_start_payload(payload()) if told is None else told,
            ticket=ticket,
            parent=os.getpid() if parent is None else parent,
            ready=ready,
            death=death,
            descriptors=(ready, death, *fds),
        )
        os.pwrite(message, encode_start(start), 0)
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "enginebay.worker.process", str(message)],
            pass_fds=(message, ready, death, *fds),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        for fd in (ready, death, message):
            os.close(fd)

    def first_word(self) -> bytes:
        with open(os.dup(self.ready), "rb") as file:
            return file.read()

    def close(self) -> None:
        self.popen.kill()
        self.popen.communicate()
        self.line.close()
        os.close(self.ready)
        if self.death >= 0:
            os.close(self.death)


@pytest.fixture
def spawned() -> Iterator[list[Spawned]]:
    """What is put in here is ended."""
    made: list[Spawned] = []
    yield made
    for one in made:
        one.close()


def test_hello_comes_before_torch_and_plugins_and_descriptors_are_kept(spawned: list[Spawned]) -> None:
    one = Spawned()
    spawned.append(one)
    word = decode_ready(one.first_word())
    assert isinstance(word, Ready)
    assert (word.worker.pid, word.worker.incarnation) == (one.popen.pid, "w0-abc")
    maps = Path(f"/proc/{one.popen.pid}/maps").read_text()
    assert "torch" not in maps
    for entry in Path(f"/proc/{one.popen.pid}/fd").iterdir():
        flags = Path(f"/proc/{one.popen.pid}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0]
        if int(entry.name) > 2:
            assert int(flags, 8) & os.O_CLOEXEC, os.readlink(entry)
    one.popen.send_signal(signal.SIGINT)  # the engine's to handle
    one.line.close()
    assert one.popen.wait(30) == 0


def test_the_end_of_the_death_pipe_is_its_end(spawned: list[Spawned]) -> None:  # X12
    one = Spawned()
    spawned.append(one)
    one.first_word()
    os.close(one.death)
    one.death = -1
    assert one.popen.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(("changes", "code"), [({"parent": 1}, 1), ({"told": b"\xc1"}, 3)])
def test_one_that_cannot_start_says_why(spawned: list[Spawned], changes: dict[str, object], code: int) -> None:
    one = Spawned(**changes)  # type: ignore[arg-type]  # one of two
    spawned.append(one)
    said = one.first_word()
    assert one.popen.wait(30) == code
    if code == 1:
        assert said == b""  # its parent is another: nobody is there to be told
    else:
        word = decode_ready(said)
        assert isinstance(word, WorkerFailure)
        assert (word.phase, word.error_type) == ("start", "DamagedMessage")


def test_started_by_hand_it_says_what_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "enginebay.worker.process", "99"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        3,
        "enginebay.worker.process is started by an executor: [Errno 9] Bad file descriptor\n",
    )


def test_a_first_word_is_msgpack() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(HELLO))["type"] == "ready"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, 0),
        ({"proc/vmstat": "nr_free 5\noom_kill 7\n"}, 7),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "low 0\noom 2\noom_kill 3\n"}, 3),
        ({"proc/self/cgroup": "0::/hidden\n", MEMORY: "oom_kill 4\n", "proc/vmstat": "oom_kill 9"}, 4),
        ({"proc/self/cgroup": "4:cpu,memory:/m\n", "sys/fs/cgroup/memory/m/memory.oom_control": "oom_kill 5\n"}, 5),
        ({"proc/self/cgroup": "0::/\n", MEMORY: "oom_kill x\n", "proc/vmstat": "oom_kill 1\n"}, 1),
    ],
)  # fmt: skip
def test_the_kernels_count_of_kills(tmp_path: Path, files: dict[str, str], kills: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == kills

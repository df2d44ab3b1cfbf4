"""Many frames of all sizes through rings far too small for them, with fast and slow readers: every byte is counted.

A half-written record, a lost wake-up or a wrong order of stores would show as a wrong sum, or as a line that stands.
"""

from __future__ import annotations

import hashlib
import random
import select
import threading
import time

import pytest

from enginebay.transport.moment import Moment
from support.rings import Rings, rings

WORKER = """\
import random
chance = random.Random(end.rank)
while (frame := end.receive(None)) is not None:
    if frame[:16] != hashlib.md5(frame[16:]).digest():
        print("damaged", len(frame), flush=True)
        break
    if chance.random() < PAUSE[end.rank]:
        time.sleep(0.002)
    body = chance.randbytes(1) * chance.choice((0, 1, 40, 700, 9_000))
    end.reply(len(frame), end.rank, frame[:16] + body)
print("done", flush=True)
"""
FETCHES = """\
from enginebay.transport.moment import Moment
Moment.expect = lambda moment: True
"""
"""Whoever has sent a frame fetches the memory of its next one, however few processors there are, and never looks."""
PAUSES = {0: 0.0, 1: 0.02, 2: 0.2}
"""Rank → how often it stops for a moment."""


def _frame(chance: random.Random) -> bytes:
    size = chance.choice((0, 1, chance.randrange(100), chance.randrange(3000), chance.randrange(60_000)))
    body = chance.randbytes(min(size, 64)) * (size // 64 + 1)
    return hashlib.md5(body[:size]).digest() + body[:size]


def _storm(seed: int, frames: int, slots: int, slot_bytes: int, first: str = "") -> None:
    """Send so many frames to changing ranks, from two threads, and check every reply; workers run ``first`` first."""
    code = f"{first}PAUSE = {PAUSES}\n{WORKER}"
    due: dict[int, list[bytes]] = {rank: [] for rank in PAUSES}
    order = threading.Lock()
    with rings(code, tuple(PAUSES), slots=slots, slot_bytes=slot_bytes) as made:

        def send(part: int) -> None:
            chance = random.Random(f"{seed}/{part}")
            for _ in range(frames // 2):
                frame = _frame(chance)
                ranks = chance.choice((None, None, (0,), (1, 2), (0, 2)))
                with order:
                    made.end.send(frame, ranks, time.monotonic() + 120)
                    for rank in PAUSES if ranks is None else ranks:
                        due[rank].append(frame)

        senders = [threading.Thread(target=send, args=(part,)) for part in range(2)]
        for sender in senders:
            sender.start()
        got = _replies(made, senders, due)
        made.end.close()
        for rank, worker in made.workers.items():
            assert worker.stdout is not None
            assert worker.stdout.read() == "done\n"
            assert [head for head, _ in got[rank]] == [frame[:16] for frame in due[rank]], f"rank {rank}"
            assert [size for _, size in got[rank]] == [len(frame) for frame in due[rank]]
    assert sum(len(frame) for frames_of in due.values() for frame in frames_of) > 5000 * frames


def _replies(
    made: Rings, senders: list[threading.Thread], due: dict[int, list[bytes]]
) -> dict[int, list[tuple[bytes, int]]]:
    got: dict[int, list[tuple[bytes, int]]] = {rank: [] for rank in due}
    poll = select.poll()
    poll.register(made.end.fileno_of_replies(), select.POLLIN)
    deadline = time.monotonic() + 240
    while any(sender.is_alive() for sender in senders) or any(len(got[rank]) < len(due[rank]) for rank in due):
        assert time.monotonic() < deadline, f"{made.end.lost}, {[(len(got[rank]), len(due[rank])) for rank in due]}"
        poll.poll(100)
        for rank, frame in made.end.take_replies():
            assert len(set(frame[32:])) <= 1
            got[rank].append((frame[16:32], int.from_bytes(frame[:8], "little")))
    return got


def test_a_storm() -> None:  # X8
    _storm(seed=1, frames=600, slots=8, slot_bytes=512)


def test_a_storm_of_ends_that_fetch_ahead(monkeypatch: pytest.MonkeyPatch) -> None:  # X8
    monkeypatch.setattr(Moment, "expect", lambda moment: True)
    _storm(seed=2, frames=600, slots=64, slot_bytes=512, first=FETCHES)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("slots", "slot_bytes"), [(2, 64), (3, 128), (8, 512), (64, 1024), (1024, 1024)])
@pytest.mark.parametrize("fetch", [False, True], ids=["", "fetch"])
def test_long_storms(slots: int, slot_bytes: int, fetch: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # X8
    if fetch:
        monkeypatch.setattr(Moment, "expect", lambda moment: True)
    for seed in range(5):
        _storm(seed, 10_000 if slots > 3 else 1_000, slots, slot_bytes, FETCHES if fetch else "")

"""The exchange of bytes through a store, with threads as ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from enginebay.errors import WorkerLost
from enginebay_external_launcher.meeting import Meeting


@pytest.fixture
def store() -> Any:
    from torch.distributed import HashStore

    return HashStore()


def meetings(store: Any, size: int) -> list[Meeting]:
    return [Meeting(store, rank, size, time.monotonic) for rank in range(size)]


def test_everybody_gets_what_everybody_gives(store: Any) -> None:
    came: dict[int, list[tuple[bytes, ...]]] = {}

    def rank(meeting: Meeting, number: int) -> None:
        came[number] = [
            meeting.exchange("x", bytes([number, turn, 0, 255]), time.monotonic() + 30) for turn in range(50)
        ]

    threads = [threading.Thread(target=rank, args=(one, number)) for number, one in enumerate(meetings(store, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [tuple(bytes([number, turn, 0, 255]) for number in range(3)) for turn in range(50)]
    assert came == {0: expected, 1: expected, 2: expected}


def test_the_store_does_not_fill_up(store: Any) -> None:
    (meeting,) = meetings(store, 1)
    for _ in range(10):
        meeting.exchange("x", b"v", time.monotonic() + 1)
    assert store.num_keys() == 1


def test_who_does_not_come_is_named(store: Any) -> None:
    zero, _ = meetings(store, 2)
    with pytest.raises(TimeoutError, match=r"^rank 1 has not come to compare its schedules$"):
        zero.exchange("schedules", b"", time.monotonic() + 0.01)


def test_who_has_left_is_not_waited_for(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay_external_launcher.meeting._GRACE", 0.01)
    zero, one = meetings(store, 2)
    one.leave()
    with pytest.raises(WorkerLost, match=r"^the engine of rank 1 has ended, and did not come to compare its blocks$"):
        zero.exchange("blocks", b"", time.monotonic() + 600)


def test_who_has_left_may_tell_its_last(store: Any) -> None:
    zero, one = meetings(store, 2)
    one.leave()
    telling = threading.Timer(0.1, one.exchange, args=("schedules", b"b", time.monotonic() + 30))
    telling.start()
    assert zero.exchange("schedules", b"a", time.monotonic() + 30) == (b"a", b"b")
    telling.join()


class Gone:
    """A store that nobody serves any more, as torch says it."""

    def __getattr__(self, name: str) -> Any:
        def fail(*arguments: object) -> None:
            raise RuntimeError("failed to recv, got 0 bytes\nmore of it")

        return fail


def test_a_store_that_is_gone_is_a_loss_and_keeps_nobody_from_leaving() -> None:
    (meeting,) = meetings(Gone(), 1)
    told = (
        "the launcher's store, in which the ranks compare their schedules, is gone: failed to recv, got 0 bytes more of"
    )
    with pytest.raises(WorkerLost, match=f"^{told} it$"):
        meeting.exchange("schedules", b"", time.monotonic() + 1)
    meeting.leave()

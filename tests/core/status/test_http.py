"""The HTTP sink: what it sends, and what it makes of whatever a server answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from enginebay.interfaces import StatusConflict, StatusSinkContext
from enginebay.messages import Phase, Slot, StatusRecord
from enginebay.status import SinkSync, StatusBook
from enginebay.status.sinks.http import HttpSink, HttpSinkOptions
from support.http_store import HttpStore, http_store
from support.status import SLOT, status

PATH = "/workers/group-0/rank-0/cpu"


@pytest.fixture(scope="module")
def server() -> Iterator[HttpStore]:
    with http_store() as store:
        yield store


@pytest.fixture
def store(server: HttpStore) -> HttpStore:
    """An empty store that does what it is asked."""
    server.reset()
    return server


def sink_of(store: HttpStore, **options: Any) -> HttpSink:
    given = {"url": f"{store.url}/workers", **options}
    return HttpSink(StatusSinkContext(options=HttpSinkOptions(**given), engine="one", wall=lambda: 1000.0))


def record(version: int = 1, *, inc: str = "a", **fields: Any) -> StatusRecord:
    return StatusRecord(status=status(Phase.READY, inc=inc, **fields), version=version)


def put(store: HttpStore, held: StatusRecord) -> None:
    """Somebody else writes there."""
    store.put(PATH, msgspec.json.encode(held))


def sent(store: HttpStore) -> list[tuple[str, str]]:
    return [(one.method, one.condition) for one in store.seen]


def test_each_slot_has_an_address(store: HttpStore) -> None:
    sink = sink_of(store, url=f"{store.url}/workers/")
    for device in ("cuda:1", "a/b?c#d e%41", "..", "é"):
        slot = Slot(group=2, rank=1, device=device)
        sink.write(StatusRecord(status=status(slot=slot), version=1), "")
        assert sink.read(slot) is not None
    names = ("cuda%3A1", "a%2Fb%3Fc%23d%20e%2541", "%2E%2E", "%C3%A9")
    assert sorted(store.kept) == sorted(f"/workers/group-2/rank-1/{name}" for name in names)


def test_conditions_go_with_what_was_seen(store: HttpStore) -> None:
    sink = sink_of(store)
    tag = sink.write(record(1), "")
    sink.write(record(2), tag)
    sink.remove(SLOT, "a")
    assert sent(store) == [
        ("PUT", "none-match *"),
        ("PUT", 'match "1"'),
        ("GET", ""),
        ("DELETE", 'match "2"'),
    ]


def test_a_server_that_says_404_of_what_is_gone(store: HttpStore) -> None:
    store.gone_is_404 = True
    sink = sink_of(store)
    tag = sink.write(record(1), "")
    store.kept.clear()
    with pytest.raises(StatusConflict) as caught:
        sink.write(record(2), tag)
    assert caught.value.held is None


def test_an_address_that_is_none_is_no_conflict(store: HttpStore) -> None:
    store.answers = [404]
    with pytest.raises(OSError, match=f"^PUT {store.url}{PATH}: answered 404 "):
        sink_of(store).write(record(), "")


def test_a_server_that_tells_no_tag_of_a_put_is_asked(store: HttpStore) -> None:
    store.tells_tags = False
    sink = sink_of(store)
    assert sink.write(record(), "") == '"1"'
    assert [method for method, _ in sent(store)] == ["PUT", "GET"]


def test_a_server_without_tags_is_refused(store: HttpStore) -> None:
    """By its own word: a write that cannot be compared would be somebody's loss."""
    store.has_tags = False
    with pytest.raises(OSError, match=f"^GET {store.url}{PATH}: answered without an ETag"):
        sink_of(store).write(record(), "")


@pytest.mark.parametrize(
    ("method", "status_code"), [("GET", 500), ("PUT", 503), ("PUT", 401), ("PUT", 301), ("DELETE", 403), ("GET", 204)]
)
def test_what_a_server_refuses_is_told_in_one_line(store: HttpStore, method: str, status_code: int) -> None:
    sink = sink_of(store)
    calls = {
        "GET": lambda: sink.read(SLOT),
        "PUT": lambda: sink.write(record(), ""),
        "DELETE": lambda: sink.remove(SLOT, "a"),
    }
    if method == "DELETE":
        sink.write(record(), "")
        store.answers = ["as asked", status_code]
    else:
        store.answers = [status_code]
    with pytest.raises(OSError, match=f"^{method} {store.url}{PATH}: answered {status_code}") as caught:
        calls[method]()
    assert "\n" not in str(caught.value)


def test_a_server_that_hangs_up_is_told(store: HttpStore) -> None:
    store.answers = [None]
    with pytest.raises(OSError, match=f"^GET {store.url}{PATH}: RemoteDisconnected: "):
        sink_of(store).read(SLOT)


def test_a_server_that_does_not_answer_is_left_after_the_timeout(store: HttpStore) -> None:
    store.hold.clear()
    with pytest.raises(OSError, match=f"^GET {store.url}{PATH}: TimeoutError: timed out$"):
        sink_of(store, timeout=0.05).read(SLOT)
    store.hold.set()


def test_a_server_that_is_not_there_is_told() -> None:
    sink = HttpSink(
        StatusSinkContext(options=HttpSinkOptions(url="http://127.0.0.1:9"), engine="one", wall=lambda: 1000.0)
    )
    with pytest.raises(OSError, match=r"^GET http://127\.0\.0\.1:9/group-0/rank-0/cpu: ConnectionRefusedError: "):
        sink.read(SLOT)


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"\xff", b'{"status": 3}'])
def test_what_is_no_record_is_told_and_left_alone(store: HttpStore, body: bytes) -> None:
    store.put(PATH, body)
    sink = sink_of(store)
    for call in (lambda: sink.read(SLOT), lambda: sink.write(record(), ""), lambda: sink.remove(SLOT, "a")):
        with pytest.raises(OSError, match=f"^GET {store.url}{PATH}: no status record stands there: "):
            call()
    assert store.kept[PATH].body == body


def test_an_answer_without_an_end_is_not_read_to_it(store: HttpStore) -> None:
    store.put(PATH, b" " * (1 << 21))
    with pytest.raises(OSError, match=r": answered with more than 1 MiB$"):
        sink_of(store).read(SLOT)


def test_a_removal_looks_again_when_the_record_changed_meanwhile(store: HttpStore) -> None:
    sink = sink_of(store)
    sink.write(record(1), "")
    store.before_delete = [lambda: put(store, record(2)), lambda: put(store, record(3))]
    sink.remove(SLOT, "a")
    assert sink.read(SLOT) is None
    assert [method for method, _ in sent(store)].count("DELETE") == 3


def test_a_removal_leaves_the_successor_that_came_meanwhile(store: HttpStore) -> None:  # T7
    sink = sink_of(store)
    sink.write(record(1), "")
    store.before_delete = [lambda: put(store, record(1, inc="b"))]
    sink.remove(SLOT, "a")
    held = sink.read(SLOT)
    assert held is not None
    assert held.record == record(1, inc="b")


def test_a_removal_gives_up_on_a_record_that_never_rests(store: HttpStore) -> None:
    sink = sink_of(store)
    sink.write(record(1), "")
    store.before_delete = [lambda: put(store, record(2))] * 3
    with pytest.raises(OSError, match=r"what stands there changed 3 times meanwhile$"):
        sink.remove(SLOT, "a")


def test_the_header_comes_from_the_environment(store: HttpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATUS_AUTH", "Bearer secret\n")  # as a file's content often ends
    sink_of(store, authorization_env="STATUS_AUTH").read(SLOT)
    sink_of(store).read(SLOT)
    assert [one.authorization for one in store.seen] == ["Bearer secret", None]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is not set"),
        (" ", "is not set"),
        ("secret\r\nX-Other: 1", "holds what no header may"),
        ("secret é", "holds what no header may"),
    ],
)
def test_a_header_that_cannot_be_sent_is_told_without_it(
    store: HttpStore, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS_AUTH", value)
    with pytest.raises(OSError, match=r"^the environment variable") as caught:
        sink_of(store, authorization_env="STATUS_AUTH").read(SLOT)
    named = r"the environment variable STATUS_AUTH, named by [status.http] authorization_env,"
    assert str(caught.value) == f"{named} {said}"
    assert store.seen == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x", "must be http://HOST/… or https://HOST/…, and is 'ftp://x'"),
        ("host:80/x", "must be http://HOST/… or https://HOST/…, and is 'host:80/x'"),
        ("http://", "must be http://HOST/… or https://HOST/…, and is 'http://'"),
        ("http://me:secret@host/", "has a name or a password in it"),
        ("http://host/?a=1", "has a part behind"),
        ("http://host:99999/", "Port out of range"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://ho st/", "has a space or a control character in it"),
        ("http://host/\r\nX: y", "has a space or a control character in it"),
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        HttpSinkOptions(url=url)
    assert said in str(caught.value)


def test_two_sinks_that_write_at_one_time_lose_nothing(store: HttpStore) -> None:
    """The server's compare-and-set, and not ours, decides."""
    outcomes: list[str] = []

    def write(inc: str) -> None:
        try:
            sink_of(store).write(record(inc=inc), "")
            outcomes.append("written")
        except StatusConflict as conflict:
            outcomes.append(f"conflict with {'another' if conflict.held is not None else 'nothing'}")

    threads = [threading.Thread(target=write, args=(inc,)) for inc in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["conflict with another"] * 3 + ["written"]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_server_does_the_newest_arrives(store: HttpStore, seed: int) -> None:  # T17
    """Refusals, cut lines, and writes of which nobody hears: once it takes records again, it holds what is so."""
    draw = random.Random(seed)
    now = [0.0]
    book = StatusBook(now=lambda: now[0], wall=lambda: 1000.0 + now[0], lock=nullcontext(), sinks=["http"])
    sync = SinkSync("http", sink_of(store), book, now=lambda: now[0], draw=draw.random)
    lives = iter("bcdefgh")
    book.set(status(Phase.STARTING, inc="a"))
    inc, failed = "a", 0
    for _ in range(40):
        store.answers = draw.choices(["as asked", "unsaid", None, 500, 412], [6, 2, 1, 1, 1], k=4)
        if draw.random() < 0.1 and (following := next(lives, None)) is not None:
            book.terminate(inc, exit_code=1)
            book.end(inc, asked=False)
            book.set(status(Phase.STARTING, inc=(inc := following)))
        else:
            book.set(status(Phase.READY, inc=inc, message=f"{now[0]}"))
        now[0] += draw.choice([0.1, 2.0, 40.0])
        sync.tick(full=draw.random() < 0.3)
        failed += sync.health().failures > 0
    assert failed > 5
    store.answers = []
    for _ in range(3):
        now[0] += 60.0
        sync.tick(full=True)
    held = sink_of(store).read(SLOT)
    assert held is not None
    assert held.record.status == book.get(inc)
    assert (sync.health().failures, sync.health().behind) == (0, 0)

"""A trace file that is followed while it is written, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from enginebay.telemetry import Live, SpanEvent, Tail, _follow, read_where, write_where
from support.records import MS, line, span

REQUEST = {"gen_ai.operation.name": "chat", "enginebay.request.id": "r"}
A, B, C = span(1, "a", 0, 1), span(2, "b", 0, 1), span(3, "c", 0, 1)


def names(tail: Tail) -> list[str]:
    spans, has_more = tail.read()
    assert not has_more
    return [one.name for one in spans]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_whole_lines_come_once(path: Path) -> None:
    tail = Tail(path)
    assert names(tail) == []  # it is not there yet
    whole = line([A, B]) + b"\n"
    append(path, whole[:-20])
    assert names(tail) == []
    append(path, whole[-20:] + b"\n" + line([C])[:5])
    assert names(tail) == ["a", "b"]
    append(path, line([C])[5:] + b"\n")
    assert names(tail) == ["c"]
    assert names(tail) == []
    tail.close()
    tail.close()


def test_a_span_that_comes_twice_is_told_of_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_follow, "_KNOWN", 2)
    tail = Tail(path)
    append(path, line([A, A, B]) + b"\n" + line([B]) + b"\n")
    assert names(tail) == ["a", "b"]
    append(path, line([C, A]) + b"\n")  # of ids that many others came after nothing is known
    assert names(tail) == ["c", "a"]
    tail.close()


def test_what_is_damaged_is_counted_and_passed_over(path: Path) -> None:
    tail = Tail(path)
    append(path, line([A]) + b"\n{half" + line([B]) + b"\n\xff\n" + line([C]) + b"\n")
    assert names(tail) == ["a", "c"]
    assert tail.damaged == 2
    tail.close()


def test_a_file_that_is_emptied_or_replaced_is_begun_anew(path: Path) -> None:
    tail = Tail(path)
    append(path, line([A, B]) + b"\nhalf of a line")
    assert names(tail) == ["a", "b"]
    path.write_bytes(line([C]) + b"\n")
    assert names(tail) == ["c"]
    other = path.with_suffix(".new")
    other.write_bytes(line([span(4, "d", 0, 1)]) + b"\n" + line([span(5, "e", 0, 1)]) + b"\n" + b" " * 500)
    os.replace(other, path)
    assert names(tail) == ["d", "e"]
    path.unlink()
    assert names(tail) == []
    append(path, line([span(6, "f", 0, 1)]) + b"\n")
    assert names(tail) == ["f"]
    assert tail.damaged == 0
    tail.close()


def test_a_large_file_comes_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_follow, "_MOST_BYTES", 64)
    append(path, line([A]) + b"\n" + line([B]) + b"\n")
    tail, found, has_more = Tail(path), [], True
    while has_more:
        spans, has_more = tail.read()
        found += [one.name for one in spans]
    assert found == ["a", "b"]
    tail.close()


def test_where_it_is_stands_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_where(tmp_path) is None
    monkeypatch.chdir(tmp_path)
    for name in ("trace.jsonl", "a\nb", os.fsdecode(b"\xff")):
        write_where(tmp_path, Path(name))
        assert read_where(tmp_path) == tmp_path / name


def test_a_line_for_each_request_start_and_recovery() -> None:
    live = Live()
    first = SpanEvent(name="first_token", time_ns=3 * MS)
    told = {**REQUEST, "gen_ai.usage.output_tokens": 5, "enginebay.request.preemptions": 0}
    spans = [
        span(9, "chat tiny", 1, 20, trace=3, attributes=told | {"enginebay.request.recoveries": 1}, events=(first,)),
        span(8, "chat\n", 1, 12, trace=2, attributes=REQUEST, status="error", message="Aborted: x\ny"),
        span(7, "decode", 1, 12, 8, trace=2),
        span(6, "engine.step", 2, 3, trace=4),
        span(5, "engine.start", 0, 1, attributes={"enginebay.executor": "mp"}),
        span(
            4,
            "engine.recover",
            2,
            9,
            trace=5,
            attributes={"enginebay.recovery.cause": "worker_lost", "enginebay.recovery.requests_requeued": 3},
        ),
    ]
    assert [text for _, text in live.add(spans)] == [
        "start     engine.start  1.00 ms, mp",
        "recovery  engine.recover  7.00 ms, 3 requests requeued, worker_lost",
        "request   chat\\n  11.00 ms, ERROR Aborted: x\\ny",
        "request   chat tiny  19.00 ms, first token after 2.00 ms, 5 tokens, 1 recovery",
    ]
    assert live.add([]) == []
    assert len(live.last()) == 4
    assert live.totals() == "2 requests (1 failed), 1 recorded step, 1 start, 1 recovery"


def test_the_table_is_of_the_last_ten_seconds() -> None:
    live = Live()
    live.add([span(1, "old", 0, 1), span(2, "new", 5000, 6000, trace=2)])
    assert [row.split()[0] for row in live.table(now_ns=10_500 * MS).splitlines()] == ["span", "new", "new"]
    assert live.table(now_ns=30_000 * MS) == ""
    assert live.table(now_ns=10_500 * MS) == "", "what has left does not come back"


def test_what_is_old_is_not_kept_also_where_no_table_is_asked_for() -> None:
    live = Live()
    for second in range(100):
        live.add([span(second + 1, "s", 1000 * second, 1000 * second + 1)])
    assert [row.split()[:2] for row in live.table(now_ns=0).splitlines()] == [
        ["span", "count"],
        ["s", "(11)"],
        ["s", "11"],
    ]

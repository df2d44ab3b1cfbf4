"""What workers print: taken apart into lines whatever the pieces are, kept, escaped, and never in anybody's way."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.runtime import system_runtime
from enginebay_mp import logs
from enginebay_mp.logs import KEPT_LINES, LogReader, Printer


class Lines:
    """In the place of a printer."""

    def __init__(self) -> None:
        self.got: list[str] = []

    def put(self, line: str) -> None:
        self.got.append(line)


class Pipe:
    """A worker's end, and the reader of ours."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.lines, self.now = Lines(), 100.0
        self.reader = LogReader(self.reads, 1, self.lines, lambda: self.now)  # type: ignore[arg-type]  # the part that is called

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """One, closed at the end."""
    made = Pipe()
    yield made
    made.close()


@given(st.lists(st.text(st.characters(exclude_characters="\n\r"), min_size=1, max_size=40), max_size=30), st.data())
def test_lines_are_the_same_in_whatever_pieces_they_come(texts: list[str], data: st.DataObject) -> None:
    made = Pipe()
    try:
        left = "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")
        while left:
            size = data.draw(st.integers(1, len(left)))
            os.write(made.writes, left[:size])
            left = left[size:]
            assert made.reader.read()
        shown = [line.removeprefix("[rank 1] ") for line in made.lines.got]
        assert len(shown) == len([text for text in texts if text.strip(" \t")])
        assert list(made.reader.last_lines) == shown[-KEPT_LINES:]
        assert all(c.isprintable() or c == "\t" for line in shown for c in line)
    finally:
        made.close()


def test_odd_lines(pipe: Pipe) -> None:
    os.write(pipe.writes, b"a\r\n 5%\r 50%\r100%\n\n   \n\xff\xfe bad\n\x1b[2Jclear\nlast, without an end")
    pipe.reader.drain()
    assert pipe.lines.got == [
        f"[rank 1] {line}" for line in ["a", "100%", "\\xff\\xfe bad", "\\x1b[2Jclear", "last, without an end"]
    ]


def test_a_line_without_end_is_cut(pipe: Pipe) -> None:
    os.write(pipe.writes, b"x" * 20000)
    pipe.reader.drain()
    assert [len(line) for line in pipe.reader.last_lines] == [8192, 8192, 20000 - 2 * 8192]


def test_what_is_left_is_taken_whole_also_where_a_piece_ends_with_a_line(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PIECE", 4)
    os.write(pipe.writes, b"one\ntwo\nsix\nthe end")
    pipe.reader.drain()
    assert list(pipe.reader.last_lines) == ["one", "two", "six", "the end"]


def test_stacks_are_kept_apart_from_lines(pipe: Pipe) -> None:
    stack = b'Current thread 0x00007f (most recent call first):\n  File "a.py", line 1 in b\n\n'
    os.write(pipe.writes, stack)
    pipe.reader.read()
    assert len(pipe.lines.got) == 2  # asked for by hand: shown
    pipe.reader.begin_stacks()
    os.write(
        pipe.writes,
        b"before\n" + stack + b'Thread 0x00008f (most recent call first):\n  File "c.py", line 2 in d\nafter\n',
    )
    pipe.reader.read()
    assert pipe.lines.got[2:] == ["[rank 1] before", "[rank 1] after"]
    assert pipe.reader.num_stack_lines == 5
    assert pipe.reader.end_stacks() == (
        'Current thread 0x00007f (most recent call first):\n  File "a.py", line 1 in b\n\n'
        'Thread 0x00008f (most recent call first):\n  File "c.py", line 2 in d'
    )
    os.write(pipe.writes, stack)
    pipe.reader.read()
    assert len(pipe.lines.got) == 6


def test_a_slow_stderr_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    first, go_on = threading.Event(), threading.Event()

    def write(text: str) -> None:
        first.set()
        go_on.wait(60)
        written.append(text)

    monkeypatch.setattr(logs, "_write", write)
    printer = Printer(system_runtime(), "enginebay-test-printer")
    printer.put("one")
    assert first.wait(60)
    for number in range(2005):
        printer.put(str(number))
    printer.close(0.0)
    go_on.set()
    printer.close(60.0)
    assert written[0] == "one\n"
    assert written[1].startswith("0\n1\n")
    assert written[1].endswith("1999\n(5 more lines of workers are not shown: stderr was too slow)\n")


def test_a_stderr_that_is_gone_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as closed:
        pass
    for stream in (None, closed):
        monkeypatch.setattr("sys.stderr", stream)
        logs._write("text\n")


def test_a_line_that_is_old_says_how_old_it_is(pipe: Pipe) -> None:
    for text, seconds in ((b"captured\n", 60.0), (b"no memory\n", 1.0)):
        os.write(pipe.writes, text)
        assert pipe.reader.read()
        pipe.now += seconds
    assert pipe.reader.last_lines == ("(61 s before) captured", "no memory")
    assert pipe.lines.got == ["[rank 1] captured", "[rank 1] no memory"]

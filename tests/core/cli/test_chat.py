"""``enginebay chat`` over the fake runner, in a pipe and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from support.fake_engines import ENGINEBAY, Installed

COMMAND = [*ENGINEBAY, "chat"]


def piped(fake: Installed, text: str, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*COMMAND, *arguments, *fake.arguments()],
        env=fake.environ(),
        input=text.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_answers_in_a_pipe(fake: Installed) -> None:
    script = "say:one\n\nsay:two\n/reset\n/nonsense\nsay:three\n/exit\nsay:never"
    code, out, err = piped(fake, script)
    assert (code, out) == (0, "one\ntwo\nthree\n")
    assert err == (
        "enginebay: forgotten\n"
        "enginebay: unknown command /nonsense; /reset forgets the conversation, /exit ends; "
        "Ctrl-C stops an answer, Ctrl-D ends\n"
    )


def test_a_conversation_that_grew_too_long_says_what_to_do(fake: Installed) -> None:
    code, out, err = piped(fake, "say:" + "x" * 200 + "\nsay:" + "y" * 200 + "\n/reset\nsay:ok\n")
    assert out == "x" * 200 + "\nok\n"
    assert code == 1
    assert "and a request may have 512" in err
    assert "; /reset forgets the conversation\n" in err


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, fake: Installed, **options: float) -> None:
        self.ours, theirs = pty.openpty()
        self.child = subprocess.Popen(
            [*COMMAND, "--max-tokens", "300", *fake.arguments(**options)],
            env={**fake.environ(), "TERM": "dumb", "COLUMNS": "400"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.seen = ""

    def expect(self, text: str, *, key: str = "") -> None:
        """Wait for the text; what came before it is forgotten. ``key`` is pressed again while nothing comes."""
        until = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < until, f"no {text!r} in {self.seen!r}"
            ready, _, _ = select.select([self.ours], [], [], 2.0)
            if not ready:
                self.type(key)
            else:
                self.seen += re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", os.read(self.ours, 4096).decode(errors="replace"))
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        """Keys; "\\x03" is Ctrl-C, "\\x04" Ctrl-D."""
        os.write(self.ours, text.encode())

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.ours)


def _take_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def terminal(fake: Installed) -> Iterator[Terminal]:
    terminal = Terminal(fake, step_seconds=0.02)
    yield terminal
    terminal.close()


def test_on_a_terminal(terminal: Terminal) -> None:
    terminal.expect("Ctrl-D ends")
    terminal.expect("> ")
    terminal.type("say:hello\n")
    terminal.expect("\nhello\r\n> ")
    terminal.type("go on\n")
    terminal.expect("\nhello")  # the whole conversation is the prompt: its last "say:" counts
    terminal.expect("> ")
    terminal.type("/reset\n")
    terminal.expect("forgotten")
    terminal.type("talk\n")
    terminal.expect("the quick")
    terminal.type("\x03")  # Ctrl-C stops the answer, not the program
    terminal.expect("\r\n> ")
    terminal.type("half a line")
    terminal.expect("half a line")  # readline has echoed it, and waits
    terminal.type("\x03")  # Ctrl-C at the prompt drops the line
    # Python's readline looks for signals and then waits for a key: one that comes in between is seen with the next
    terminal.expect("\r\n> ", key="\x03")
    terminal.type("say:still here\n")
    terminal.expect("\nstill here\r\n> ")
    terminal.type("\x04")
    assert terminal.child.wait(20) == 0

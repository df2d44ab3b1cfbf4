"""Telling of strange errors and values never fails itself, and Ctrl-C is nobody's fault."""

from __future__ import annotations

import pytest

from enginebay.cli._signals import Terminated
from enginebay.errors import in_words, is_interrupt, shown
from support.leaving import PAST_EXCEPTION, NoWords, in_a_thread


class Leaves:
    """A value whose ``repr`` and ``str`` end the process, or would."""

    def __repr__(self) -> str:
        raise SystemExit(3)


class NotText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # that is what must not matter


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("a\nb  c"), "ValueError: a b c"),
        (ValueError(), "ValueError"),
        (NoWords(), "NoWords: (its text cannot be had)"),
        (NotText(), "NotText: (its text cannot be had)"),
        (ValueError(Leaves()), "ValueError: (its text cannot be had)"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_error_in_words(error: BaseException, words: str) -> None:
    assert in_words(error) == words


def test_a_long_error_is_cut() -> None:
    assert len(in_words(ValueError("a" * 10_000_000))) == 1000


def test_a_value_is_shown_in_one_line() -> None:
    assert shown(("a", 1)) == "('a', 1)"
    assert shown("a" * 999, 10) == "'aaaaaaaa…"
    assert shown(NoWords()) == "a NoWords that cannot be shown"
    assert shown([Leaves()]) == "a list that cannot be shown"


def test_ctrl_c_while_an_error_is_told_of_is_ctrl_c() -> None:
    class Slow(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_words(Slow())


@pytest.mark.parametrize("kind", PAST_EXCEPTION)
def test_an_interrupt_comes_where_signals_do(kind: type[BaseException]) -> None:
    assert is_interrupt(kind()) is (kind is KeyboardInterrupt)
    seen: list[bool] = []
    assert in_a_thread(lambda: seen.append(is_interrupt(kind()))) is None
    assert seen == [False]


def test_the_command_lines_own_way_of_ending_is_one() -> None:
    assert is_interrupt(Terminated())
    assert not is_interrupt(ValueError())

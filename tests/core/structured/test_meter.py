"""An answer whose masks take too long ends, and no other does: by a clock that the test sets forth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from enginebay.messages import StructuredOutput
from enginebay.structured import GrammarState
from enginebay.structured._definitions import definition_of, form_of
from enginebay.structured._llguidance import first_fault, new_state
from enginebay.structured._meter import Meter
from enginebay.structured._vocabulary import Vocabulary, load_vocabulary
from support.tiny_tokenizers import sentencepiece_like

from .conftest import eos_of
from .test_llguidance import TOKENIZER, VOCABULARY

SHAPE = definition_of(*form_of(StructuredOutput(regex="[a-c]{500}")))
LEGACY = sentencepiece_like(legacy=True)
BEHIND_SPACE = load_vocabulary(LEGACY.to_json(), LEGACY.vocab_size, [eos_of(LEGACY)])


class Ticks:
    """A clock by which each piece of work takes the next of these times, in seconds; the last for ever."""

    def __init__(self, *times: float) -> None:
        self._times, self._now, self._begun = list(times), 0.0, False

    def __call__(self) -> float:
        if self._begun:
            self._now += self._times.pop(0) if len(self._times) > 1 else self._times[0]
        self._begun = not self._begun
        return self._now


def started(now: Callable[[], float] | None, vocabulary: Vocabulary = VOCABULARY) -> GrammarState:
    return new_state(vocabulary, SHAPE, Meter(now))


def follow(state: GrammarState, steps: int, token: Sequence[int]) -> int:
    """Draw so often; returns after how many masks it cannot go on."""
    for count in range(1, steps + 1):
        state.mask()
        if state.error:
            return count
        assert state.accept(token) == 1
    return 0


A = TOKENIZER.encode("a")


@pytest.mark.parametrize(
    ("times", "after"),
    [
        ((0.0001,), 0),
        ((0.002,), 0),  # 4 ms for a mask and a token
        ((0.9, 0.0001), 0),  # one that is long
        ((1.1, 0.0001), 1),  # one that is too long
        ((0.05,), 12),  # 0.1 s for each
        ((0.004,), 335),  # 8 ms for each
    ],
)
def test_masks_that_take_too_long_on_the_average(times: tuple[float, ...], after: int) -> None:  # S15
    assert follow(started(Ticks(*times)), 400, A) == after


def test_it_says_so_and_the_next_answer_has_a_time_of_its_own() -> None:  # S15
    slow = started(Ticks(1.5, 0.0))
    slow.mask()
    assert slow.error == "its 1 masks took 1.500 s each, and may take 0.005 s on the average"
    assert follow(started(Ticks(0.001)), 50, A) == 0


def test_what_is_looked_at_ahead_counts() -> None:
    state = started(Ticks(0.6))
    state.mask()
    assert state.error == ""
    state.copy().mask()
    assert state.error != ""


def test_the_first_token_of_two_states_counts() -> None:
    state = started(Ticks(0.6), BEHIND_SPACE)
    state.mask()
    assert state.error != ""


def test_what_is_not_measured_goes_on() -> None:
    assert follow(started(None), 400, A) == 0


@pytest.mark.parametrize(
    ("seconds", "fault"), [(0.05, ""), (0.5, "its first mask takes 0.50 s, and may take 0.1 s")], ids=["short", "long"]
)
def test_a_shape_whose_first_mask_takes_too_long(seconds: float, fault: str) -> None:
    assert first_fault(VOCABULARY, SHAPE, Ticks(seconds, 0.0)) == fault

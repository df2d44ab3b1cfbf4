"""The library behind the interface: llguidance, its vocabulary, and its state while an answer grows.

Decision: llguidance, and not xgrammar. Both draw exact masks for byte-level and byte-fallback vocabularies. llguidance
is one wheel of 3 MB that needs nothing else, not even torch; xgrammar requires torch, transformers and triton, which a
scheduler's process must not load. llguidance reads a tokenizer.json itself, needs no table for each grammar and
vocabulary in advance, and bounds each mask's work by its own limits. A violating change imports torch here.

It never raises for a grammar at fault: it goes into a state of error, which has to be asked for after each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from enginebay.structured._definitions import behind_space
from enginebay.structured._interfaces import GrammarState
from enginebay.structured._meter import FIRST_MASK_SECONDS, Meter
from enginebay.structured._vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

__all__ = ["FirstTokenState", "LLGuidanceState", "first_fault", "new_state"]

_MOST_SYMBOLS: Final = 200_000
_MOST_LEXER_STATES: Final = 50_000
"""Of one answer. 50,000 take 17 MiB as measured; a string of 5,000 characters with a ``maxLength`` needs 25,000."""
_COMPILE_FUEL: Final = 1_000_000
_MASK_FUEL: Final = 200_000
_MASK_ITEMS: Final = 20_000
"""Usual shapes need up to 400 as measured, an object of 400 optional properties 3,200."""
_ROW_ITEMS: Final = 2_000
_NOTHING: Final = "NoExtensionBias"
"""The library's word for a place where no token fits."""


def new_state(vocabulary: Vocabulary, definition: str, meter: Meter | None = None) -> GrammarState:
    """The state of an empty answer, measured by ``meter``. Raises ``ValueError`` with the library's own words."""
    meter = meter or Meter()
    bare = _state(vocabulary, definition, meter)
    if vocabulary.plain is None or vocabulary.spaced is None:
        return bare
    behind = _state(vocabulary, behind_space(definition), meter)
    return FirstTokenState(bare, behind, vocabulary.plain, vocabulary.spaced)


def first_fault(vocabulary: Vocabulary, definition: str, now: Callable[[], float] | None = None) -> str:
    """Why a definition is of no use, or "": it does not compile, or no first token can be drawn, or none behind it.

    By the clock ``now`` it is measured whether the first mask takes too long.
    """
    meter = Meter(now)
    try:
        state = new_state(vocabulary, definition, meter)
    except ValueError as error:
        return str(error)
    allowed = int.from_bytes(state.mask(), "little")
    if meter.seconds > FIRST_MASK_SECONDS:
        return f"its first mask takes {meter.seconds:.2f} s, and may take {FIRST_MASK_SECONDS:g} s"
    if state.error in ("", _NOTHING) and (state.error or not allowed):
        return "no answer fits it"
    if not state.error and not state.is_complete:
        state.accept(((allowed & -allowed).bit_length() - 1,))
    return state.error and f"it cannot be followed: {state.error}"


def _state(vocabulary: Vocabulary, definition: str, meter: Meter) -> LLGuidanceState:
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary.tokenizer, definition, log_level=0, limits=_limits())
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return LLGuidanceState(matcher, vocabulary.size, meter)


class LLGuidanceState:
    """Where an answer stands in its grammar. Not thread-safe; ``copy`` is cheap, and has the limits of its original."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, meter: Meter) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._meter = meter

    def copy(self) -> LLGuidanceState:
        """The same state, which goes its own way."""
        return LLGuidanceState(self._matcher.deep_copy(), self._vocab_size, self._meter)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Go on by as many of these tokens, none of them eos, as the grammar allows; returns how many."""
        if any(not 0 <= token_id < self._vocab_size for token_id in token_ids):
            return 0
        return int(self._meter.other(lambda: self._matcher.try_consume_tokens(list(token_ids))))

    def mask(self) -> bytes:
        """What may come next, packed: bit ``i % 8`` of byte ``i // 8`` is token i; whole words of 32 tokens."""
        return bytes(self._meter.mask(self._matcher.compute_bitmask)[: (self._vocab_size + 31) // 32 * 4])

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def error(self) -> str:
        """Why it cannot go on, in one line, or ""."""
        if not self._matcher.is_error():
            return self._meter.fault
        lines = str(self._matcher.get_error()).splitlines()
        return lines[0] if lines else "the library does not say why"


class FirstTokenState:
    """The state of an answer whose first token may lose the space that it begins with: behind one, it is drawn so.

    ``plain`` and ``spaced`` are the tokens that begin an answer in each of the two states; one that loses more than a
    space is not drawn first. From its first token on it is that token's state.
    """

    def __init__(self, bare: LLGuidanceState, behind: LLGuidanceState, plain: int, spaced: int) -> None:
        self._begun: LLGuidanceState | None = None
        self._bare = bare
        self._behind = behind
        self._plain = plain
        self._spaced = spaced

    def copy(self) -> GrammarState:
        """The same state, which goes its own way."""
        if self._begun is not None:
            return self._begun.copy()
        return FirstTokenState(self._bare.copy(), self._behind.copy(), self._plain, self._spaced)

    def accept(self, token_ids: Sequence[int]) -> int:
        """As ``GrammarState`` has it."""
        if self._begun is not None or not token_ids:
            return 0 if self._begun is None else self._begun.accept(token_ids)
        first = token_ids[0]
        if first < 0 or not (self._plain | self._spaced) >> first & 1:
            return 0
        state = self._bare if self._plain >> first & 1 else self._behind
        accepted = state.accept(token_ids)
        self._begun = state if accepted else None
        return accepted

    def mask(self) -> bytes:
        """As ``GrammarState`` has it."""
        if self._begun is not None:
            return self._begun.mask()
        bare, behind = self._bare.mask(), self._behind.mask()
        allowed = int.from_bytes(bare, "little") & self._plain | int.from_bytes(behind, "little") & self._spaced
        return allowed.to_bytes(len(bare), "little")

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return (self._begun or self._bare).is_complete

    @property
    def error(self) -> str:
        """Why it cannot go on, in one line, or ""."""
        return self._begun.error if self._begun is not None else self._bare.error or self._behind.error


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=_ROW_ITEMS,
        initial_lexer_fuel=_COMPILE_FUEL,
        step_lexer_fuel=_MASK_FUEL,
        step_max_items=_MASK_ITEMS,
        max_lexer_states=_MOST_LEXER_STATES,
        max_grammar_size=_MOST_SYMBOLS,
        verbose_errors=False,
    )

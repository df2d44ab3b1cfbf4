"""The library behind the interface: llguidance, its vocabulary, and its state while an answer grows.

Decision: llguidance, and not xgrammar. Both draw exact masks for byte-level and byte-fallback vocabularies. llguidance
is one wheel of 3 MB that needs nothing else, not even torch; xgrammar requires torch, transformers and triton, which a
scheduler's process must not load. llguidance reads a tokenizer.json itself, needs no table for each grammar and
vocabulary in advance, and bounds each mask's work by its own limits. A violating change imports torch here.

It never raises for a grammar at fault: it goes into a state of error, which has to be asked for after each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["LLGuidanceState", "first_fault", "load_vocabulary", "new_state"]

_MOST_SYMBOLS: Final = 200_000
_MOST_LEXER_STATES: Final = 50_000
"""Each takes 1 to 2 kB, says the library."""
_COMPILE_FUEL: Final = 1_000_000
_MASK_FUEL: Final = 200_000
_MASK_ITEMS: Final = 50_000
_ROW_ITEMS: Final = 2_000


def load_vocabulary(tokenizer: str, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The vocabulary of a tokenizer.json's text, as wide as the model's logits. It takes a second, and the GIL."""
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_token_ids))


def new_state(vocabulary: LLTokenizer, definition: str) -> LLGuidanceState:
    """The state of an empty answer. Raises ``ValueError`` with the library's own words."""
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary, definition, log_level=0, limits=_limits())
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return LLGuidanceState(matcher, vocabulary.vocab_size)


def first_fault(vocabulary: LLTokenizer, definition: str) -> str:
    """Why a definition is of no use, or "": it does not compile, or its first mask cannot be drawn."""
    try:
        state = new_state(vocabulary, definition)
    except ValueError as error:
        return str(error)
    state.mask()
    return state.error and f"no answer fits it ({state.error})"


class LLGuidanceState:
    """Where an answer stands in its grammar. Not thread-safe; ``copy`` is cheap."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> LLGuidanceState:
        """The same state, which goes its own way."""
        return LLGuidanceState(self._matcher.deep_copy(), self._vocab_size)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Go on by as many of these tokens, none of them eos, as the grammar allows; returns how many."""
        if any(not 0 <= token_id < self._vocab_size for token_id in token_ids):
            return 0
        return int(self._matcher.try_consume_tokens(list(token_ids)))

    def allows(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could come next; the state stays."""
        return int(self._matcher.validate_tokens(list(token_ids)))

    def mask(self) -> bytes:
        """What may come next, packed: bit ``i % 8`` of byte ``i // 8`` is token i; whole words of 32 tokens."""
        return bytes(self._matcher.compute_bitmask()[: (self._vocab_size + 31) // 32 * 4])

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def error(self) -> str:
        """Why it cannot go on, in one line, or ""."""
        if not self._matcher.is_error():
            return ""
        lines = str(self._matcher.get_error()).splitlines()
        return lines[0] if lines else "the library does not say why"


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

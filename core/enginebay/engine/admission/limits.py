"""What the engine in force can take, and the sizes that hold for every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginebay.interfaces import BatchConstraints, Options, SchedulerLimits
from enginebay.kvcache import CacheShape, GroupSpec
from enginebay.scheduling import check_fits

__all__ = [
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_TOKENS",
    "MAX_BIASED_TOKENS",
    "MAX_BYTES_PER_TOKEN",
    "MAX_CHOICES",
    "MAX_EXTRA_BYTES",
    "MAX_ID_CHARS",
    "MAX_LOGPROBS",
    "MAX_PROMPT_BYTES",
    "MAX_STOP_CHARS",
    "MAX_STOP_STRINGS",
    "MAX_STOP_TOKENS",
    "AdmissionLimits",
    "CheckFits",
]

MAX_ID_CHARS: Final = 256
MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_STOP_TOKENS: Final = 1024
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_TOKENS: Final = 4096
MAX_BIASED_TOKENS: Final = 1024
MAX_CHOICES: Final = 16
MAX_LOGPROBS: Final = 20
MAX_EXTRA_BYTES: Final = 64 * 1024

MAX_PROMPT_BYTES: Final = 10_000_000
"""Of a prompt's text; a longer one is refused before it is tokenized."""

MAX_BYTES_PER_TOKEN: Final = 128
"""A prompt of more bytes than this for each token that a request may have is refused before it is tokenized.

The longest tokens of common vocabularies are runs of 128 spaces, so what is refused could hardly have fitted.
"""


@dataclass(frozen=True, kw_only=True)
class CheckFits:
    """``AdmissionLimits.check_fits`` of an engine: plain values, so that a front end elsewhere can have the same.

    ``groups``: none means one that sees everything; ``max_step_tokens`` is as in ``CacheShape``.
    """

    limits: SchedulerLimits
    constraints: BatchConstraints
    num_blocks: int
    block_size: int
    groups: tuple[GroupSpec, ...] = ()
    max_step_tokens: int | None = None

    @property
    def shape(self) -> CacheShape:
        """The cache's groups."""
        return CacheShape(self.groups or (GroupSpec(self.block_size),), self.max_step_tokens)

    def __call__(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise ``RequestTooLong``, with the numbers, for a request that can never run."""
        check_fits(num_prompt_tokens, max_tokens, self.limits, self, self.constraints)


@dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
    """What the engine in force can take. ``has_text``: whether the model has a tokenizer.

    ``runner`` is how messages name it: "runner 'v1' 1.0". ``check_fits`` gets (prompt tokens, max_tokens) and raises
    ``RequestTooLong``, with the numbers, for a request that can never run. ``max_model_len`` is the longest request in
    tokens. ``bad_word_ids`` are the token ids of each way in which a word can come. ``request_extras`` is what the
    plugins in force take in ``extra``, with their names. ``untimed`` is why no request can have a timeout, or "".
    """

    vocab_size: int
    runner: str
    features: frozenset[str]
    check_fits: Callable[[int, int], None]
    has_text: bool = True
    max_model_len: int | None = None
    bad_word_ids: Callable[[str], tuple[tuple[int, ...], ...]] | None = None
    request_extras: tuple[tuple[str, type[Options]], ...] = ()
    untimed: str = ""

"""What an undisturbed request yields: a pure function of the request, reckoned from tokens and never from a cache.

Every token leaves a word at its position, made of the word before it, so that equal words mean equal beginnings; the
first one is made of the salt. The token drawn after position p is made of the sum of all words up to p, and of the
request's draw key when it is not greedy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from string import ascii_letters
from typing import NamedTuple

from simulation.plan import EOS, MAX_MODEL_LEN, VOCAB, Want

__all__ = [
    "Answer",
    "answer",
    "draw_key",
    "drawn_token",
    "forbidden",
    "logprob_of",
    "next_word",
    "next_words",
    "root_word",
    "text_of",
]

_NOTHING: frozenset[int] = frozenset()
_MASK = (1 << 44) - 1


def root_word(salt: str) -> int:
    """The word before the first position."""
    return int.from_bytes(salt.encode(), "little") * 2654435761 & _MASK


def next_word(before: int, token_id: int) -> int:
    """The word that a token leaves after the word ``before``."""
    return (before * 747796405 + token_id * 2891336453 + 277803737 ^ before >> 17) & _MASK


def next_words(before: int, token_ids: Sequence[int]) -> list[int]:
    """The words that several tokens leave, one after the other."""
    words = []
    for token_id in token_ids:
        before = (before * 747796405 + token_id * 2891336453 + 277803737 ^ before >> 17) & _MASK  # one call for all
        words.append(before)
    return words


def draw_key(seed: int, choice: int, position: int) -> int:
    """What keys the draw of the token at ``position``: nothing of the batch, the step or the generation."""
    return (seed * 40503 + choice * 69069 + position) * 2246822519 & _MASK


def drawn_token(total: int, key: int, masked: Collection[int] = ()) -> int:
    """The token after words of this sum; never one that is masked. The key is 0 when the draw is greedy."""
    token = ((((total & _MASK) ^ key) * 3266489917 & _MASK) >> 21) % VOCAB
    while token in masked:
        token = (token + 1) % VOCAB
    return token


def text_of(token_ids: Sequence[int]) -> str:
    """The text of tokens: one letter each."""
    return "".join([_LETTERS[token_id] for token_id in token_ids])


_LETTERS = "~" + ascii_letters


def forbidden(token_ids: Sequence[int]) -> frozenset[int]:
    """What a grammar forbids after this much of an answer: a third of the tokens, and never the end."""
    return _THIRDS[sum(token_ids) % 3]


_THIRDS = tuple([frozenset(range(1 + rest, VOCAB, 3)) for rest in range(3)])


class Answer(NamedTuple):
    """A whole answer: its tokens, text, why it ended ("stop" or "length"), and log-probabilities if any were asked."""

    token_ids: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[float, ...] = ()
    prompt_logprobs: tuple[float, ...] = ()


def logprob_of(total: int) -> float:
    """The log-probability that is told of the token after words of this sum."""
    return -(total % 4093) / 64


def answer(want: Want, seed: int, choice: int) -> Answer:
    """The answer that a choice of an undisturbed request gets; ``seed`` is the effective one."""
    prompt = want.prompt
    words = next_words(root_word(want.salt), prompt)
    word, total = words[-1], sum(words)
    told: tuple[float, ...] = ()
    if want.prompt_logprobs and not choice:
        told = tuple(logprob_of(so_far) for so_far in accumulate(words[:-1]))
    tokens: list[int] = []
    logprobs: list[float] = []
    text = ""
    ends = frozenset(want.stop_token_ids) if want.ignore_eos else frozenset((*want.stop_token_ids, EOS))
    finish, drawn = "", want.temperature
    while not finish:
        masked = ends if len(tokens) < want.min_tokens else _NOTHING
        key = draw_key(seed, choice, len(prompt) + len(tokens)) if drawn else 0
        if want.shaped:
            masked = masked | forbidden(tokens)
        token = drawn_token(total, key, masked)
        tokens.append(token)
        if want.logprobs:
            logprobs.append(logprob_of(total))
        if token in ends:
            finish = "stop"
            break
        text += _LETTERS[token]
        for one in want.stop:
            if len(tokens) >= want.min_tokens and text.endswith(one):
                text, finish = text[: -len(one)], "stop"
        if not finish and (len(tokens) >= want.max_tokens or len(prompt) + len(tokens) >= MAX_MODEL_LEN):
            finish = "length"
        word = next_word(word, token)
        total += word
    return Answer(tuple(tokens), text, finish, tuple(logprobs), told)

"""One compiler over a tiny byte-level vocabulary, and ways to ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from enginebay.messages import StructuredOutput
from enginebay.runtime import system_runtime
from enginebay.structured import GrammarState, HelperCompiler
from enginebay.text import Tokenizer
from support.tiny_tokenizers import byte_level

PATIENCE = 120.0

Compile = Callable[[StructuredOutput], GrammarState]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Iterator[HelperCompiler]:
    found = compiler_of(tokenizer)
    found.compile(StructuredOutput(regex="a")).result(PATIENCE)  # its child is there before a test looks around
    yield found
    found.close()


@pytest.fixture
def own_compiler(tokenizer: Tokenizer) -> Iterator[HelperCompiler]:
    """One whose child may die."""
    found = compiler_of(tokenizer)
    yield found
    found.close()


@pytest.fixture(scope="module")
def compiled(compiler: HelperCompiler) -> Compile:
    return lambda structured: compiler.compile(structured).result(PATIENCE)


def eos_of(tokenizer: Tokenizer) -> int:
    """The last special token."""
    return max(tokenizer.special_ids)


def compiler_of(tokenizer: Tokenizer, **limits: Any) -> HelperCompiler:
    """A compiler with a vocabulary that is wider than the tokenizer's."""
    return HelperCompiler(
        system_runtime(),
        tokenizer=tokenizer.to_json,
        vocab_size=tokenizer.vocab_size + 7,
        eos_token_ids=[eos_of(tokenizer)],
        **limits,
    )


def tokens_of(mask: bytes) -> set[int]:
    """The tokens of one packed row."""
    return set(np.nonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))[0].tolist())


def accepts(state: GrammarState, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the text, token by token, each one allowed by the mask before it, is a whole answer."""
    state = state.copy()
    for token in tokenizer.encode(text):
        in_mask = token in tokens_of(state.mask())
        assert in_mask == bool(state.accept((token,))), f"{text!r}: mask and state differ at token {token}"
        if not in_mask:
            return False
    assert state.is_complete == (eos_of(tokenizer) in tokens_of(state.mask()))
    return state.is_complete

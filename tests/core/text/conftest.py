"""The real tokenizer, and tiny ones of every other kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.text import ChatTemplate, Tokenizer
from support.tiny_tokenizers import KINDS


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    """SmolLM2's tokenizer."""
    return Tokenizer.from_folder(smollm2)


@pytest.fixture(scope="session")
def smollm2_template(smollm2: Path) -> ChatTemplate:
    """SmolLM2's chat template."""
    return ChatTemplate.from_folder(smollm2)


@pytest.fixture(scope="session", params=KINDS)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """One tiny tokenizer after the other."""
    return KINDS[request.param]()

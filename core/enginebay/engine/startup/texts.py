"""Where a model's tokenizer and chat template are read from: ``[model] tokenizer`` first, then the model's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from enginebay.engine.startup.plan import Plan
from enginebay.text import ChatTemplate, Tokenizer

__all__ = ["bad_word_ids", "find_chat_template", "read_tokenizer"]


def read_tokenizer(plan: Plan) -> Tokenizer:
    """The tokenizer that the config names, else the model's own. Raises ``ModelError``."""
    return Tokenizer.from_folder(plan.config.model.tokenizer or Path(plan.model.path))


def find_chat_template(model: Path, named: Path | None) -> ChatTemplate | None:
    """The template beside the tokenizer that is ``named``, else the model's own; None: there is none.

    Raises ``ModelError`` for one that cannot be read, or is broken.
    """
    folders = [model]
    if named is not None:
        folders.insert(0, named if named.is_dir() else named.parent)
    found = (ChatTemplate.find(folder) for folder in folders)
    return next((template for template in found if template is not None), None)


def bad_word_ids(tokenizer: Tokenizer) -> Callable[[str], tuple[tuple[int, ...], ...]]:
    """The token ids of a word as it stands and after a space, as the tokenizer splits it; other splits exist."""

    def ids(word: str) -> tuple[tuple[int, ...], ...]:
        ways = dict.fromkeys(tuple(tokenizer.encode(text)) for text in (word, f" {word}"))
        return tuple(way for way in ways if way)

    return ids

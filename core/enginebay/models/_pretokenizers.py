"""How text is cut before byte-pair merging, for each ``tokenizer.ggml.pre`` that is known.

The cuts are facts of each model family's published tokenizer.json; a value that is not here is refused by name,
because a wrong cut gives ids that look right and are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# one after the other, each cutting what the one before it left
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "llama-bpe": (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",),
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_WHOLE_WORDS = frozenset({"gpt-2", "phi-2", "mpt", "olmo", "jais"})
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})

KNOWN = sorted({*_SPLITS, *_ALIASES, *_WHOLE_WORDS, *_SINGLE_DIGITS})
IGNORE_MERGES = frozenset({"llama-bpe"})  # a whole word that is in the vocabulary is taken as it is

ADD_BOS = frozenset({"llama-bpe"})  # where the file does not say


def canonical(name: str) -> str:
    """The name under which the tables know it."""
    return _ALIASES.get(name, name)


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a known (``KNOWN``) name."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    name = canonical(name)
    if name in _WHOLE_WORDS:
        return ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _SINGLE_DIGITS:
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    cuts = [Split(Regex(pattern), behavior="isolated", invert=False) for pattern in _SPLITS[name]]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])

"""Tiny tokenizers of every kind that published models have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from enginebay.text import Tokenizer
from support.tiny_gguf import vocabulary


def writable() -> st.SearchStrategy[str]:
    """Characters that SmolLM2 can write: its vocabulary lacks the bytes of those from U+40000 on, and of six more."""
    missing = "\x04\x06\x13\x14\x16\x1d"
    return st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters=f"{missing}\ufffd")


def _specials(base: tokenizers.Tokenizer) -> Tokenizer:
    base.add_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>", "<|end|>")])
    base.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return Tokenizer(base.to_str(), "here")


def sentencepiece_like(*, legacy: bool) -> Tokenizer:
    """As Llama 2 and Mistral have it: "▁" for spaces, bytes for what is unknown; ``legacy`` by a normalizer."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.,é", "th", "▁th"]
    pieces += ["▁the", "he", "in", "▁a", "▁▁", "an", "and", "▁and"]
    merges = [("t", "h"), ("▁", "th"), ("h", "e"), ("▁th", "e"), ("i", "n"), ("▁", "a"), ("▁", "▁"), ("a", "n")]
    merges += [("an", "d"), ("▁a", "nd")]
    tokens = {p: i for i, p in enumerate(dict.fromkeys([*pieces, "▁a", "nd"]))}
    merges.insert(0, ("n", "d"))
    base = tokenizers.Tokenizer(models.BPE(tokens, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if legacy:
        base.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        base.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    base.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    base.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", len(tokens))])
    return _specials(base)


def metaspace() -> Tokenizer:
    """A unigram-like vocabulary under the Metaspace decoder, without bytes."""
    tokens = {p: i for i, p in enumerate(["<unk>", "▁", *"abcde", "▁a", "▁b", "bc", "▁▁"])}
    base = tokenizers.Tokenizer(models.BPE(tokens, [("▁", "a"), ("▁", "b"), ("b", "c")], unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    base.decoder = decoders.Metaspace()
    return _specials(base)


def wordpiece() -> Tokenizer:
    """As BERT has it."""
    tokens = {p: i for i, p in enumerate(["[UNK]", *"abc", "##a", "##b", "##bc", ".", "'", "n't", "do", "ab"])}
    base = tokenizers.Tokenizer(models.WordPiece(tokens, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    base.decoder = decoders.WordPiece()
    return _specials(base)


def byte_level() -> Tokenizer:
    """Each byte a token, some runs of bytes that are no whole characters, and added tokens of every kind."""
    tokens, merges, _ = vocabulary()
    halves = ["âĤ", "ðŁ", "ĺĢ", "é"]
    ids = {p: i for i, p in enumerate([*tokens[3:269], *halves])}
    base = tokenizers.Tokenizer(models.BPE(ids, [tuple(m.split(" ")) for m in merges]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    base.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("two words", "日本", "ĠĠx")])
    return _specials(base)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "sentencepiece": lambda: sentencepiece_like(legacy=False),
    "sentencepiece-legacy": lambda: sentencepiece_like(legacy=True),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
    "byte-level": byte_level,
}


def write_chat_folder(folder: Path, tokenizer: str, template: object, **config: object) -> Path:
    """A folder with a tokenizer and a template in tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    return folder

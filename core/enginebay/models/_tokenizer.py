"""tokenizer.json and tokenizer_config.json from a GGUF file's metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from enginebay.errors import ModelError
from enginebay.models._files import write_json
from enginebay.models._gguf import GgufFile
from enginebay.models._metadata import token_roles
from enginebay.models._pretokenizers import ADD_BOS, IGNORE_MERGES, KNOWN, canonical, pre_tokenizer

_CONTROL, _USER_DEFINED = 3, 4


def write_tokenizer(file: GgufFile, folder: Path, vocab_size: int, max_length: int) -> None:
    """Write both files into ``folder``.

    Raises ``ModelError`` when the tokenizer is of a kind that cannot be rebuilt exactly.
    """
    path, metadata = file.path, file.metadata
    tokens, merges, types = _parts(path, metadata, vocab_size)
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in KNOWN:
        raise ModelError(
            f"{path}: the pre-tokenizer '{pre}' is not known, and another one would give wrong ids; "
            f"known: {', '.join(KNOWN)}"
        )
    roles = token_roles(file, len(tokens))
    wants_bos = metadata.get("tokenizer.ggml.add_bos_token", canonical(pre) in ADD_BOS) is True
    bos = roles[0] if wants_bos else None
    _build(pre, tokens, merges, types, bos).save(str(folder / "tokenizer.json"))
    _write_config(metadata, tokens, roles, folder, max_length)


def _parts(path: Path, metadata: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[tuple[str, str]], Any]:
    """Tokens, merges and token types, checked."""
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model != "gpt2":
        raise ModelError(
            f"{path}: tokenizers of kind '{model}' cannot be rebuilt from a GGUF file, only 'gpt2' (byte-level BPE); "
            "use the model's folder of safetensors with its tokenizer.json"
        )
    tokens = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise ModelError(
            f"{path}: the tokenizer is missing: 'tokenizer.ggml.tokens' or 'tokenizer.ggml.merges' is not there"
        )
    types = metadata.get("tokenizer.ggml.token_type", np.ones(len(tokens), dtype=np.int32))
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu":
        raise ModelError(f"{path}: the tokenizer is damaged: 'tokenizer.ggml.token_type' is no list of numbers")
    if len(tokens) > vocab_size or len(set(tokens)) != len(tokens) or len(types) != len(tokens):
        raise ModelError(
            f"{path}: the tokenizer is damaged: {len(tokens)} tokens ({len(set(tokens))} different), "
            f"{len(types)} types, {vocab_size} embeddings"
        )
    known, pairs = set(tokens), []
    for merge in merges:
        left, space, right = str(merge).partition(" ")
        if not (space and left in known and right in known and left + right in known):
            raise ModelError(f"{path}: the tokenizer is damaged: merge '{merge}' names tokens that are not there")
        pairs.append((left, right))
    return tokens, pairs, types


def _build(pre: str, tokens: list[str], merges: list[tuple[str, str]], types: Any, bos: int | None) -> Any:
    """``bos`` is the id put before every text; None: nothing is."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.processors import ByteLevel as ByteLevelProcessor
    from tokenizers.processors import Sequence, TemplateProcessing

    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=canonical(pre) in IGNORE_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = ByteLevelDecoder()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types.tolist(), strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]
    tokenizer.add_tokens(added)
    offsets = ByteLevelProcessor(trim_offsets=False)
    if bos is not None:
        template = TemplateProcessing(
            single=[tokens[bos], "$A"], pair=[tokens[bos], "$A", tokens[bos], "$B"], special_tokens=[(tokens[bos], bos)]
        )
        tokenizer.post_processor = Sequence([offsets, template])
    else:
        tokenizer.post_processor = offsets
    return tokenizer


def _write_config(
    metadata: Mapping[str, Any],
    tokens: list[str],
    roles: tuple[int | None, tuple[int, ...], int | None],
    folder: Path,
    max_length: int,
) -> None:
    def token(index: Any) -> str | None:
        return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None

    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    bos, ends, pad = roles
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    for name, index in (("bos", bos), ("eos", ends[0] if ends else None), ("pad", pad), ("unk", unknown)):
        if (text := token(index)) is not None:
            config[f"{name}_token"] = text
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = template
    write_json(folder / "tokenizer_config.json", config)

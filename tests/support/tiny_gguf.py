"""Tiny random GGUF files of the architectures that can be converted, with a byte-level tokenizer of 300 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from enginebay.text._pieces import BYTE_OF

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, CONTEXT = 64, 96, 4, 2, 16, 2, 300, 128
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Kind = gguf.GGMLQuantizationType


def vocabulary() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types: three control tokens, 256 bytes, merges, one user-defined, padding."""
    tokens = [*SPECIAL, *BYTE_OF]
    merges = ["t h", "th e", "i n", "e r", "Ġ t", "Ġt h", "Ġth e", "a n", "an d", "o n"]
    tokens += [m.replace(" ", "") for m in merges] + ["<think>"]
    types = [3] * 3 + [1] * 266 + [4]
    while len(tokens) < VOCAB - 10:  # fewer tokens than embeddings, as padded models have it
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(3)
    return tokens, merges, types


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    tied: bool = True,
    bias: bool = False,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    without: frozenset[str] = frozenset(),
    pre: str = "smollm",
    bos: bool = False,
) -> Path:
    """Write a whole tiny model. ``metadata`` is added or replaces; ``without`` leaves tensors or keys out."""
    writer = gguf.GGUFWriter(path, architecture)
    tokens, merges, types = vocabulary()
    keys: dict[str, Any] = {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": CONTEXT,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": INNER,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.key_length": HEAD_DIM,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": bos,
        "tokenizer.chat_template": TEMPLATE,
        **(metadata or {}),
    }
    for key, value in keys.items():
        if key not in without:
            _add(writer, key, value)
    random = np.random.default_rng(seed)
    for name, shape in _shapes(architecture, tied, bias).items():
        if name not in without:
            values = random.standard_normal(shape, dtype=np.float32) * 0.2
            quantized = kind if len(shape) > 1 else Kind.F32
            writer.add_tensor(name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _shapes(architecture: str, tied: bool, bias: bool) -> dict[str, tuple[int, ...]]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (q, HIDDEN),
        "attn_k.weight": (kv, HIDDEN),
        "attn_v.weight": (kv, HIDDEN),
        "attn_output.weight": (HIDDEN, q),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (INNER, HIDDEN),
        "ffn_up.weight": (INNER, HIDDEN),
        "ffn_down.weight": (HIDDEN, INNER),
    }
    if architecture == "qwen2" or bias:
        layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if bias:
        layer["attn_output.bias"] = (HIDDEN,)
    if architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    for number in range(LAYERS):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    return shapes

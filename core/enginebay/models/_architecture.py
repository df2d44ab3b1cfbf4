"""What a GGUF model becomes: its config.json and generation_config.json, and where each of its tensors goes.

Names of the metadata keys and tensors: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The names on the
other side are those of the architecture's published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.errors import ModelError
from enginebay.models._gguf import GgufTensor
from enginebay.models._metadata import ARCHITECTURES, Metadata, token_roles
from enginebay.models._rope import FACTORS_TENSOR, rope_parameters

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, kw_only=True)
class PlacedTensor:
    """A tensor under its new ``name``. ``rotary_heads``: heads whose rows must be put back in order, 0: none."""

    name: str
    source: GgufTensor
    rotary_heads: int = 0


def build_config(meta: Metadata, dtype: str) -> dict[str, Any]:
    """config.json of the model; raises ``ModelError`` for what the target architecture cannot express."""
    path, tensors = meta.file.path, meta.file.tensors
    if meta.integer("expert_count", 0):
        raise ModelError(f"{path}: mixtures of experts cannot be converted; use a folder of safetensors")
    if "token_embd.weight" not in tensors:
        raise ModelError(f"{path}: tensor 'token_embd.weight' is missing")
    hidden, heads = meta.size("embedding_length"), meta.size("attention.head_count")
    if hidden % heads and f"{meta.architecture}.attention.key_length" not in meta.file.metadata:
        raise ModelError(f"{path}: {heads} attention heads do not divide the hidden size {hidden}")
    head_dim = meta.size("attention.key_length", max(1, hidden // heads))
    rotary = meta.integer("rope.dimension_count", head_dim)
    if rotary != head_dim or meta.integer("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{path}: heads of {head_dim} with {rotary} rotary dimensions cannot be converted")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[meta.architecture]],
        "model_type": meta.architecture,
        "dtype": dtype,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.size("feed_forward_length"),
        "num_hidden_layers": meta.size("block_count", largest=2**63),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": meta.size("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.number("rope.freq_base", 10000.0),
        "rope_parameters": rope_parameters(meta),
        "tie_word_embeddings": "output.weight" not in tensors,
        "use_cache": True,
    }
    if meta.architecture != "qwen2":  # its bias on q, k and v is part of the architecture
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        if meta.architecture == "llama":
            config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    bos, ends, pad = token_roles(meta.file, config["vocab_size"])
    config |= {"bos_token_id": bos, "eos_token_id": ends[0] if len(ends) == 1 else list(ends) or None}
    if pad is not None:
        config["pad_token_id"] = pad
    meta.refuse_unread()
    return config


def generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: the ids that begin and end a text."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: config[key] for key in keys if config.get(key) is not None}


def place_tensors(meta: Metadata, config: Mapping[str, Any]) -> list[PlacedTensor]:
    """Every tensor with its new name, in the order of the layers; missing and unknown ones are errors."""
    path, left = meta.file.path, dict(meta.file.tensors)
    left.pop(FACTORS_TENSOR, None)  # already in rope_parameters
    if config["num_hidden_layers"] > len(left):  # before anything loops by it
        raise ModelError(f"{path}: {len(left)} tensors cannot make {config['num_hidden_layers']} layers")
    expected = _expected(meta.architecture, config)
    placed: list[PlacedTensor] = []
    for source_name, (name, shape, rotary) in expected.items():
        source = left.pop(source_name, None)
        if source is None:
            raise ModelError(f"{path}: tensor '{source_name}' is missing")
        if source.shape != shape:
            raise ModelError(
                f"{path}: tensor '{source_name}' has the shape {list(source.shape)}, "
                f"the metadata asks for {list(shape)}"
            )
        placed.append(PlacedTensor(name=name, source=source, rotary_heads=rotary))
    if left:
        raise ModelError(f"{path}: tensor '{min(left)}' has no place in {config['architectures'][0]}")
    return placed


def _expected(architecture: str, config: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """GGUF name → (new name, shape, heads to put back in order)."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q, kv = heads * config["head_dim"], kv_heads * config["head_dim"]
    rotary = architecture == "llama"  # llama.cpp interleaves the two rotary halves of this architecture alone
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "attn_norm.weight": ((hidden,), 0),
        "attn_q.weight": ((q, hidden), heads * rotary),
        "attn_k.weight": ((kv, hidden), kv_heads * rotary),
        "attn_v.weight": ((kv, hidden), 0),
        "attn_output.weight": ((hidden, q), 0),
        "ffn_norm.weight": ((hidden,), 0),
        "ffn_gate.weight": ((inner, hidden), 0),
        "ffn_up.weight": ((inner, hidden), 0),
        "ffn_down.weight": ((hidden, inner), 0),
    }
    if architecture == "qwen2" or config.get("attention_bias"):
        shapes |= {
            "attn_q.bias": ((q,), heads * rotary),
            "attn_k.bias": ((kv,), kv_heads * rotary),
            "attn_v.bias": ((kv,), 0),
        }
        if architecture != "qwen2":
            shapes["attn_output.bias"] = ((hidden,), 0)
    if config.get("mlp_bias"):
        shapes |= {"ffn_gate.bias": ((inner,), 0), "ffn_up.bias": ((inner,), 0), "ffn_down.bias": ((hidden,), 0)}
    if architecture == "qwen3":
        head_dim = config["head_dim"]
        shapes |= {"attn_q_norm.weight": ((head_dim,), 0), "attn_k_norm.weight": ((head_dim,), 0)}
    outer: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        outer["output.weight"] = (vocab, hidden)
    expected = {name: (_OUTER[name], shape, 0) for name, shape in outer.items()}
    for layer in range(config["num_hidden_layers"]):
        for name, (shape, heads_to_order) in shapes.items():
            stem, _, ending = name.partition(".")
            expected[f"blk.{layer}.{name}"] = (f"model.layers.{layer}.{_INNER[stem]}.{ending}", shape, heads_to_order)
    return expected

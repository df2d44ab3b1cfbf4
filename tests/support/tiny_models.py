"""Tiny random models of the supported families, in fp32, written as folders that runner and transformers both load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCAB = 199

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "initializer_range": 0.2,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama-rope-llama3": (
        "LlamaForCausalLM",
        {
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama-rope-yarn": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "llama-one-kv-head": ("LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 16}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 12}),
    "mistral-no-window": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-layer-types": (  # transformers' AutoModel takes it for a Ministral
        "MistralForCausalLM",
        {"sliding_window": 12, "layer_types": ["sliding_attention"] * 3},
    ),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-mixed-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": False}),
}
"""Name → architecture and what differs from the common shape. Windows are smaller than the prompts of the tests."""


def make_model(folder: Path, family: str, **changes: Any) -> Path:
    """Write a random model of this family; the same one each time. Returns the folder."""
    import torch
    import transformers

    architecture, own = FAMILIES[family]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**_COMMON, **own, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = model_class(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers makes them zero, which would hide a bias that is forgotten
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Words "w0" to "w198" are ids 0 to 198."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def edit_config(folder: Path, **changes: Any) -> Path:
    """Change keys of a folder's config.json; a value of None removes the key."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for key, value in changes.items():
        config.pop(key, None) if value is None else config.__setitem__(key, value)
    path.write_text(json.dumps(config), "utf-8")
    return folder


def reference(folder: Path, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """What transformers' ``generate`` answers greedily in fp32 to each prompt alone, eos ignored."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
            answers.append(out[0, len(prompt) :].tolist())
    return answers

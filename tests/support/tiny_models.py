"""Tiny random models of the supported families, in fp32, written as folders that runner and transformers both load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.tiny_families import COMMON, FAMILIES, VOCAB

__all__ = ["FAMILIES", "VOCAB", "edit_config", "make_model", "reference"]


def make_model(folder: Path, family: str, **changes: Any) -> Path:
    """Write a random model of this family; the same one each time. Returns the folder."""
    import torch
    import transformers

    architecture, own = FAMILIES[family]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**COMMON, **own, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = model_class(config).eval()
        _randomize(model)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _randomize(model: Any) -> None:
    """No weight is all zeros or ones, as biases, norms and sinks are made: it would hide a forgotten one."""
    import torch

    buffers = [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()]
    for name, weight in [*model.named_parameters(), *buffers]:
        if weight.ndim < 2 or "norm" in name:
            weight.data.add_(torch.randn(weight.shape), alpha=0.2)
        else:
            torch.nn.init.normal_(weight, std=0.2)


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

"""None runs silently: what is not on the list is refused at load too, by what the probe sees, with no list asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.errors import ModelError
from enginebay.worker.loader import load_causal_lm
from enginebay.worker.probing.known import FAMILIES, OWN_WAYS
from enginebay.worker.probing.probe import probe
from enginebay_runner_v1.attention import ATTENTION, register
from support.tiny_families import COMMON, FULL

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_n_groups": 1}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "BambaForCausalLM": (
        {**_MAMBA, "attn_layer_indices": [1]},
        "BambaForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    "BloomForCausalLM": (
        {"n_head": 6, "n_layer": 3},
        "BloomForCausalLM: attention was called by layers [], instead of once by each of 3",
    ),
    "DiffLlamaForCausalLM": (
        {},
        "DiffLlamaForCausalLM: attention was called by layers [0, 0, 1, 1, 2, 2], instead of once by each of 3",
    ),
    "FalconForCausalLM": (
        {"new_decoder_architecture": False},
        "config.json: FalconForCausalLM cannot be built from it: KeyError: 'enginebay_paged'",
    ),
    "FalconH1ForCausalLM": (
        {"mamba_d_ssm": 48, **_MAMBA, "mamba_d_head": 8},
        "model.layers.0.mamba (FalconH1Mixer) has buffers that no file holds, ",
    ),
    "FalconMambaForCausalLM": (
        {"state_size": 4},
        "FalconMambaForCausalLM has 0 attention modules for 3 layers: not one in each",
    ),
    "GPTNeoForCausalLM": (
        {
            "num_layers": 2,
            "num_hidden_layers": 2,
            "num_heads": 6,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
        },
        "config.json: GPTNeoForCausalLM cannot be built from it: KeyError: 'enginebay_paged'",
    ),
    "GraniteMoeHybridForCausalLM": (
        {
            **_MAMBA,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 32,
        },
        "GraniteMoeHybridForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    "JambaForCausalLM": (
        {
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "use_mamba_kernels": False,
        },
        "JambaForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    "Lfm2ForCausalLM": (
        {"layer_types": ["conv", FULL, "conv"], "block_multiple_of": 8},
        "Lfm2ForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    "Llama4ForCausalLM": (
        {"intermediate_size_mlp": 64, "num_local_experts": 2, "head_dim": 8, "attention_chunk_size": 8},
        "layer 0 sees other tokens than the last 8 up to its own: chunks, or both directions",
    ),
    "Mamba2ForCausalLM": (
        {"state_size": 4, "num_heads": 6, "head_dim": 16, "n_groups": 2, "expand": 2},
        "Mamba2ForCausalLM has 0 attention modules for 3 layers: not one in each",
    ),
    "MambaForCausalLM": ({"state_size": 4}, "MambaForCausalLM has 0 attention modules for 3 layers: not one in each"),
    "MiniMaxForCausalLM": (
        {
            "num_local_experts": 2,
            "layer_types": ["linear_attention", FULL, "linear_attention"],
            "head_dim": 8,
            "block_size": 8,
        },
        "MiniMaxForCausalLM: attention was called by layers [1], instead of once by each of 3",
    ),
    "MptForCausalLM": (
        {"d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 128},
        "MptForCausalLM: attention was called by layers [], instead of once by each of 3",
    ),
    "Qwen3NextForCausalLM": (
        {
            **_EXPERTS,
            "shared_expert_intermediate_size": 32,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "head_dim": 16,
            "layer_types": ["linear_attention", FULL, "linear_attention"],
        },
        "Qwen3NextForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    "RecurrentGemmaForCausalLM": (
        {"lru_width": 48, "attention_window_size": 8, "head_dim": 8},
        "RecurrentGemmaForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    "RwkvForCausalLM": ({}, "RwkvForCausalLM has 0 attention modules for 3 layers: not one in each"),
    "ZambaForCausalLM": (
        {"mamba_d_state": 4, "n_mamba_heads": 2},
        "ZambaForCausalLM has 1 attention modules for 3 layers: not one in each",
    ),
    # on no list at all
    "BertLMHeadModel": ({}, "layer 0 sees other tokens than all up to its own: chunks, or both directions"),
    "DogeForCausalLM": ({}, "layer 0 attends with a mask of its own, which paged attention does not have"),
    "MoshiForCausalLM": (
        {"sliding_window": 8, "head_dim": 8},
        "layer 0 sees all tokens, and transformers' cache keeps 8 of them, as config.json says: ",
    ),
}
"""Architecture → what makes its tiny model, and how the refusal begins, with no allow-list asked."""

_PICTURES = "it takes pictures or sound"
_UNBUILT = {"Zamba2ForCausalLM"}
"""Its config has no tiny form."""


def test_every_text_architecture_that_is_refused_by_name_is_tried() -> None:
    named = {name for name, why in OWN_WAYS.items() if not why.startswith(_PICTURES)}
    assert named - {"Llama4ForConditionalGeneration"} - _UNBUILT <= REFUSED.keys()
    assert not REFUSED.keys() & FAMILIES.keys()


@pytest.mark.parametrize("architecture", REFUSED)
def test_it_is_refused_at_load_with_no_list_asked(tmp_path: Path, architecture: str) -> None:
    import transformers

    own, expected = REFUSED[architecture]
    folder = tmp_path / "model"
    model_class = getattr(transformers, architecture)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = model_class(model_class.config_class(**{**COMMON, **own})).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    register()
    with pytest.raises(ModelError) as caught:
        probe(load_causal_lm(folder, architecture=architecture, dtype="float32", device="cpu", attention=ATTENTION))
    message = str(caught.value).removeprefix(f"{folder}/")
    assert message.startswith(expected), message
    assert message.isprintable()

"""For every architecture that runner v1 allows, the config of a tiny model in which all of its work shows.

Windows are shorter than the prompts of the tests, caps are low, scales are far from 1.
"""

from __future__ import annotations

from typing import Any

VOCAB = 199
WINDOW = 12
FULL, SLIDING = "full_attention", "sliding_attention"

COMMON: dict[str, Any] = {
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
    "tie_word_embeddings": False,
}
"""What a model has where its family says nothing else."""

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
}
_LATENT = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_MIXED = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL, SLIDING]}
_GRANITE = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
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
    "mistral-window": ("MistralForCausalLM", {"sliding_window": WINDOW}),
    "mistral-no-window": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-layer-types": (  # transformers' AutoModel takes it for a Ministral
        "MistralForCausalLM",
        {"sliding_window": WINDOW, "layer_types": [SLIDING] * 3},
    ),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-mixed-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": False}),
    "apertus": ("ApertusForCausalLM", {}),
    "arcee": ("ArceeForCausalLM", {}),
    "biogpt": ("BioGptForCausalLM", {"num_key_value_heads": 6}),
    "codegen": ("CodeGenForCausalLM", {"rotary_dim": 4, "num_attention_heads": 8, "hidden_size": 64}),
    "cohere": ("CohereForCausalLM", {"use_qk_norm": True, "logit_scale": 0.4, "tie_word_embeddings": True}),
    "cohere2": ("Cohere2ForCausalLM", {**_MIXED, "logit_scale": 0.4}),
    "cwm": ("CwmForCausalLM", {**_MIXED}),
    "deepseek-v2": ("DeepseekV2ForCausalLM", {**_LATENT, **_ROUTED, "topk_method": "group_limited_greedy"}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {**_LATENT, **_ROUTED}),
    "deepseek-v3-yarn": (
        "DeepseekV3ForCausalLM",
        {
            **_LATENT,
            **_ROUTED,
            "q_lora_rank": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "dots1": ("Dots1ForCausalLM", {**_ROUTED, **_MIXED}),
    "ernie4.5": ("Ernie4_5ForCausalLM", {"head_dim": 16, "use_bias": True}),
    "ernie4.5-moe": (
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "exaone4": ("Exaone4ForCausalLM", {**_MIXED}),
    "flex-olmo": ("FlexOlmoForCausalLM", {**_EXPERTS}),
    "gemma": ("GemmaForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            **_MIXED,
            "head_dim": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 10,
        },
    ),
    "gemma3": ("Gemma3ForCausalLM", {**_MIXED, "head_dim": 16, "query_pre_attn_scalar": 10}),
    "gemma3n": (
        "Gemma3nForCausalLM",
        {
            **_MIXED,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "head_dim": 16,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0],
            "final_logit_softcapping": 3.0,
        },
    ),
    "glm": ("GlmForCausalLM", {"head_dim": 16}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 16}),
    "glm4-moe": ("Glm4MoeForCausalLM", {**_ROUTED, "head_dim": 8}),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", {"multi_query": True}),
    "gpt-oss": ("GptOssForCausalLM", {**_LOCAL_EXPERTS, **_MIXED, "head_dim": 16}),
    "cohere2-moe": ("Cohere2MoeForCausalLM", {**_EXPERTS, **_MIXED, "head_dim": 16, "logit_scale": 0.4}),
    "exaone-moe": ("ExaoneMoeForCausalLM", {**_EXPERTS, **_MIXED, "num_shared_experts": 1, "head_dim": 8}),
    "glm4-moe-lite": ("Glm4MoeLiteForCausalLM", {**_LATENT, **_ROUTED}),
    "granite-moe-swa": (
        "GraniteMoeSWAForCausalLM",
        {**_LOCAL_EXPERTS, **_MIXED, **_GRANITE, "shared_intermediate_size": 32},
    ),
    "granite-swa": ("GraniteSWAForCausalLM", {**_MIXED, **_GRANITE}),
    "jais2": ("Jais2ForCausalLM", {}),
    "minicpm3": ("MiniCPM3ForCausalLM", {**_LATENT, "scale_emb": 3.0, "scale_depth": 1.7}),
    "minimax-m2": ("MiniMaxM2ForCausalLM", {**_LOCAL_EXPERTS, "head_dim": 16}),
    "nanochat": ("NanoChatForCausalLM", {}),
    "solar-open": ("SolarOpenForCausalLM", {**_ROUTED, "head_dim": 8}),
    "youtu": ("YoutuForCausalLM", {**_LATENT}),
    "gpt2": ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}),
    "gptj": ("GPTJForCausalLM", {"rotary_dim": 4}),
    "gpt-neox": ("GPTNeoXForCausalLM", {"num_key_value_heads": 6}),
    "granite": ("GraniteForCausalLM", {**_GRANITE}),
    "granite-moe": ("GraniteMoeForCausalLM", {**_LOCAL_EXPERTS, **_GRANITE}),
    "granite-moe-shared": (
        "GraniteMoeSharedForCausalLM",
        {**_LOCAL_EXPERTS, **_GRANITE, "shared_intermediate_size": 32},
    ),
    "helium": ("HeliumForCausalLM", {"head_dim": 8}),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", {"head_dim": 8}),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", {"head_dim": 8, "num_experts": 4, "moe_topk": 2}),
    "hyperclovax": ("HyperCLOVAXForCausalLM", {}),
    "ministral": ("MinistralForCausalLM", {**_MIXED, "head_dim": 16}),
    "ministral3": (
        "Ministral3ForCausalLM",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "mixtral": ("MixtralForCausalLM", {**_LOCAL_EXPERTS, "sliding_window": WINDOW}),
    "nemotron": ("NemotronForCausalLM", {}),
    "olmo": ("OlmoForCausalLM", {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {**_MIXED}),
    "olmoe": ("OlmoeForCausalLM", {**_EXPERTS, "clip_qkv": 0.5}),
    "opt": ("OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 32}),
    "persimmon": ("PersimmonForCausalLM", {"num_key_value_heads": 6}),
    "phi": ("PhiForCausalLM", {"qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": WINDOW}),
    "phimoe": ("PhimoeForCausalLM", {**_LOCAL_EXPERTS, "sliding_window": WINDOW}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        {
            **_EXPERTS,
            "shared_expert_intermediate_size": 32,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": [FULL, SLIDING, SLIDING],
        },
    ),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**_EXPERTS, "head_dim": 16, "mlp_only_layers": [1]}),
    "seed-oss": ("SeedOssForCausalLM", {"head_dim": 16}),
    "smollm3": ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, **_MIXED}),
    "stablelm": ("StableLmForCausalLM", {"qk_layernorm": True, "use_qkv_bias": True}),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": WINDOW}),
    "vaultgemma": (
        "VaultGemmaForCausalLM",
        {
            **_MIXED,
            "head_dim": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 10,
        },
    ),
}
"""Name → architecture and what differs from the common shape."""

"""The table of architectures: those that paged attention runs exactly, and those of which is known why it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EXPERT_KEYS", "FAMILIES", "OWN_WAYS", "ROPE_TYPES", "Family"]

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Those whose frequencies are the same for every text."""

EXPERT_KEYS = frozenset({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_shared_experts"})
"""How configs spell the number of experts."""
_CAPPED = frozenset({"attn_logit_softcapping"})


@dataclass(frozen=True, slots=True)
class Family:
    """``model_type``: a config in which it differs is run one way here and another way elsewhere. ``windows``: the
    class has none, one for all layers, or one by ``layer_types``. ``reads``: oddities of config.json that it does."""

    model_type: str
    windows: Literal["none", "one", "layers"] = "none"
    reads: frozenset[str] = frozenset()


FAMILIES: dict[str, Family] = {
    "ApertusForCausalLM": Family("apertus"),
    "ArceeForCausalLM": Family("arcee"),
    "BioGptForCausalLM": Family("biogpt"),
    "CodeGenForCausalLM": Family("codegen"),
    "Cohere2ForCausalLM": Family("cohere2", "layers"),
    "Cohere2MoeForCausalLM": Family("cohere2_moe", "layers", EXPERT_KEYS),
    "CohereForCausalLM": Family("cohere"),
    "CwmForCausalLM": Family("cwm", "layers"),
    "DeepseekV2ForCausalLM": Family("deepseek_v2", reads=EXPERT_KEYS),
    "DeepseekV3ForCausalLM": Family("deepseek_v3", reads=EXPERT_KEYS),
    "Dots1ForCausalLM": Family("dots1", "layers", EXPERT_KEYS),
    "Ernie4_5ForCausalLM": Family("ernie4_5"),
    "Ernie4_5_MoeForCausalLM": Family("ernie4_5_moe", reads=EXPERT_KEYS),
    "Exaone4ForCausalLM": Family("exaone4", "layers"),
    "ExaoneMoeForCausalLM": Family("exaone_moe", "layers", EXPERT_KEYS),
    "FlexOlmoForCausalLM": Family("flex_olmo", reads=EXPERT_KEYS),
    "GPT2LMHeadModel": Family("gpt2"),
    "GPTBigCodeForCausalLM": Family("gpt_bigcode"),
    "GPTJForCausalLM": Family("gptj"),
    "GPTNeoXForCausalLM": Family("gpt_neox"),
    "Gemma2ForCausalLM": Family("gemma2", "layers", _CAPPED),
    "Gemma3ForCausalLM": Family("gemma3_text", "layers"),
    "Gemma3nForCausalLM": Family("gemma3n_text", "layers"),
    "GemmaForCausalLM": Family("gemma"),
    "Glm4ForCausalLM": Family("glm4"),
    "Glm4MoeForCausalLM": Family("glm4_moe", reads=EXPERT_KEYS),
    "Glm4MoeLiteForCausalLM": Family("glm4_moe_lite", reads=EXPERT_KEYS),
    "GlmForCausalLM": Family("glm"),
    "GptOssForCausalLM": Family("gpt_oss", "layers", EXPERT_KEYS),
    "GraniteForCausalLM": Family("granite"),
    "GraniteMoeForCausalLM": Family("granitemoe", reads=EXPERT_KEYS),
    "GraniteMoeSWAForCausalLM": Family("granitemoe_swa", "layers", EXPERT_KEYS),
    "GraniteMoeSharedForCausalLM": Family("granitemoeshared", reads=EXPERT_KEYS),
    "GraniteSWAForCausalLM": Family("granite_swa", "layers"),
    "HeliumForCausalLM": Family("helium"),
    "HunYuanDenseV1ForCausalLM": Family("hunyuan_v1_dense"),
    "HunYuanMoEV1ForCausalLM": Family("hunyuan_v1_moe", reads=EXPERT_KEYS),
    "HyperCLOVAXForCausalLM": Family("hyperclovax"),
    "Jais2ForCausalLM": Family("jais2"),
    "LlamaForCausalLM": Family("llama"),
    "MiniCPM3ForCausalLM": Family("minicpm3"),
    "MiniMaxM2ForCausalLM": Family("minimax_m2", reads=EXPERT_KEYS),
    "Ministral3ForCausalLM": Family("ministral3", "one"),
    "MinistralForCausalLM": Family("ministral", "layers"),
    "MistralForCausalLM": Family("mistral", "one"),
    "MixtralForCausalLM": Family("mixtral", "one", EXPERT_KEYS),
    "NanoChatForCausalLM": Family("nanochat"),
    "NemotronForCausalLM": Family("nemotron"),
    "OPTForCausalLM": Family("opt"),
    "Olmo2ForCausalLM": Family("olmo2"),
    "Olmo3ForCausalLM": Family("olmo3", "layers"),
    "OlmoForCausalLM": Family("olmo"),
    "OlmoeForCausalLM": Family("olmoe", reads=EXPERT_KEYS),
    "PersimmonForCausalLM": Family("persimmon"),
    "Phi3ForCausalLM": Family("phi3", "one"),
    "PhiForCausalLM": Family("phi"),
    "PhimoeForCausalLM": Family("phimoe", "one", EXPERT_KEYS),
    "Qwen2ForCausalLM": Family("qwen2", "layers"),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", "layers", EXPERT_KEYS),
    "Qwen3ForCausalLM": Family("qwen3", "layers"),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", "layers", EXPERT_KEYS),
    "SeedOssForCausalLM": Family("seed_oss"),
    "SmolLM3ForCausalLM": Family("smollm3", "layers"),
    "SolarOpenForCausalLM": Family("solar_open", reads=EXPERT_KEYS),
    "StableLmForCausalLM": Family("stablelm"),
    "Starcoder2ForCausalLM": Family("starcoder2", "one"),
    "VaultGemmaForCausalLM": Family("vaultgemma", "layers", _CAPPED),
    "YoutuForCausalLM": Family("youtu"),
}
"""Architecture → what is known of it. Each runs in the tests, token for token, against transformers' ``generate``."""

_CHUNKS = "it attends in chunks"
_SOME_STATE = "some of its layers keep a state instead of keys and values"
_ALL_STATE = "it keeps a state instead of keys and values"
_BESIDE = "its layers keep a state beside keys and values"
_BIAS = "it adds a position bias to the scores"
_NOT_ROUTED = "transformers does not route its attention through the interface"
_PICTURES = "it takes pictures or sound beside text; its text model alone is another architecture"

OWN_WAYS = {
    "BambaForCausalLM": _SOME_STATE,
    "BloomForCausalLM": _BIAS,
    "DiffLlamaForCausalLM": "it subtracts two attention maps",
    "FalconForCausalLM": _NOT_ROUTED,
    "FalconH1ForCausalLM": _BESIDE,
    "FalconMambaForCausalLM": _ALL_STATE,
    "GPTNeoForCausalLM": _NOT_ROUTED,
    "Gemma3ForConditionalGeneration": _PICTURES,
    "Gemma3nForConditionalGeneration": _PICTURES,
    "GraniteMoeHybridForCausalLM": _SOME_STATE,
    "JambaForCausalLM": _SOME_STATE,
    "Lfm2ForCausalLM": "some of its layers are convolutions with a state",
    "Llama4ForCausalLM": _CHUNKS,
    "Llama4ForConditionalGeneration": _CHUNKS,
    "LlavaForConditionalGeneration": _PICTURES,
    "Mamba2ForCausalLM": _ALL_STATE,
    "MambaForCausalLM": _ALL_STATE,
    "MiniMaxForCausalLM": "some of its layers attend linearly",
    "Mistral3ForConditionalGeneration": _PICTURES,
    "MllamaForConditionalGeneration": _PICTURES,
    "MptForCausalLM": _BIAS,
    "Qwen2VLForConditionalGeneration": _PICTURES,
    "Qwen2_5_VLForConditionalGeneration": _PICTURES,
    "Qwen3NextForCausalLM": _SOME_STATE,
    "Qwen3VLForConditionalGeneration": _PICTURES,
    "RecurrentGemmaForCausalLM": _SOME_STATE,
    "RwkvForCausalLM": _ALL_STATE,
    "Zamba2ForCausalLM": _SOME_STATE,
    "ZambaForCausalLM": _SOME_STATE,
}
"""Architectures of which it is known why the attention interface does not carry them."""

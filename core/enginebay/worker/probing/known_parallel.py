"""Of which architectures it is known that they are not split among ranks, and why; read before anything is started."""

from __future__ import annotations

from enginebay.messages import ModelInfo

__all__ = ["NO_STAGES", "NO_TENSOR_RANKS", "splits"]

_NO_PLAN = "transformers has no plan for it that splits its layers"

NO_TENSOR_RANKS = {
    "BioGptForCausalLM": _NO_PLAN,
    "CodeGenForCausalLM": "its queries, keys and values are one projection, in an order of its own",
    "GPT2LMHeadModel": _NO_PLAN,
    "GPTBigCodeForCausalLM": _NO_PLAN,
    "Gemma3nForCausalLM": "its MLP keeps activations by their mean and deviation over the whole layer",
    "GptOssForCausalLM": _NO_PLAN,
    "HunYuanDenseV1ForCausalLM": _NO_PLAN,
    "OPTForCausalLM": _NO_PLAN,
    "PersimmonForCausalLM": _NO_PLAN,
    "StableLmForCausalLM": _NO_PLAN,
}
"""Architecture → why its layers are not split. All others of ``known`` run split in the tests, token for token."""

NO_STAGES = {
    "Gemma3nForCausalLM": "its layers pass on several streams, and read keys and values of layers before them",
}
"""Architecture → why it has no pipeline stages. All others of ``known`` run in stages in the tests, token for token."""


def splits(model: ModelInfo, tensor: int, pipeline: int) -> str | None:
    """None when the model can be shared out to so many tensor ranks and stages, else the reason why not.

    What config.json does not show is looked at when the model is loaded.
    """
    architecture = model.architecture
    if tensor > 1:
        if (why := NO_TENSOR_RANKS.get(architecture)) is not None:
            other = "" if architecture in NO_STAGES else " (pipeline_parallel_size works)"
            return f"[parallel] tensor_parallel_size is {tensor}, and {architecture} is not split: {why}{other}"
        if 0 < (heads := _number(model, "num_attention_heads", "n_head")) < tensor:
            return f"[parallel] tensor_parallel_size is {tensor}, and {model.name} has {heads} query heads: lower it"
    if pipeline > 1:
        if (why := NO_STAGES.get(architecture)) is not None:
            other = "" if architecture in NO_TENSOR_RANKS else " (tensor_parallel_size works)"
            return f"[parallel] pipeline_parallel_size is {pipeline}, and {architecture} has no stages: {why}{other}"
        if 0 < (layers := _number(model, "num_hidden_layers", "n_layer")) < pipeline:
            return f"[parallel] pipeline_parallel_size is {pipeline}, and {model.name} has {layers} layers: lower it"
    return None


def _number(model: ModelInfo, *names: str) -> int:
    """What config.json says under one of these names; 0: nothing that is a number."""
    found = [model.config[name] for name in names if type(model.config.get(name)) is int]
    return found[0] if found else 0

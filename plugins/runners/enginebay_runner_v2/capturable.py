"""Which models runner ``v2`` captures as a graph: of those that paged attention runs exactly, all but a few kinds.

Read from the raw config.json; neither torch nor transformers is imported.
"""

from __future__ import annotations

from enginebay.messages import ModelInfo
from enginebay.worker.probing.families import supports as runs_exactly
from enginebay.worker.probing.known import EXPERT_KEYS, FAMILIES

__all__ = ["NOT_CAPTURED", "supports"]

_EXPERTS = "its layers choose among experts, for which the graph has no operators"
_TABLE = "it looks positions up in a table that no file holds"
_KEYS_IN_PARTS = "it writes keys part by part, which cannot be split among tensor ranks"
_MANY_STREAMS = "its layers read keys and values of layers before them"

NOT_CAPTURED = {
    **{name: _EXPERTS for name, family in FAMILIES.items() if family.reads & EXPERT_KEYS},
    "CodeGenForCausalLM": _TABLE,
    "GPTJForCausalLM": _TABLE,
    "Gemma3nForCausalLM": _MANY_STREAMS,
    "MiniCPM3ForCausalLM": _KEYS_IN_PARTS,
}
"""Architecture → why its step is not captured. All others of ``known`` run captured in the tests, token for token."""


def supports(model: ModelInfo) -> str | None:
    """None when the model's step can be captured and runs exactly, else the reason why not."""
    if (why := runs_exactly(model)) is not None:
        return why
    why = NOT_CAPTURED.get(model.architecture)
    return why and f"architecture {model.architecture} is not captured as a graph: {why}; runner v1 runs it"

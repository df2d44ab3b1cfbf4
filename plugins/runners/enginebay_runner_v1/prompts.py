"""Log-probabilities of prompts: the model's head, run over few rows at a time.

Logits of a whole prompt would be its length times the vocabulary, gigabytes for a long one, so they are never made at
once. What stands between the last layer and the logits (norms, scales, caps) is each family's own, so the head is run
by the model's own forward, whose body is replaced for the moment by what it returned in the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from enginebay.worker.answers import PromptEntries, prompt_entries

__all__ = ["body_outputs", "logprobs_in_chunks"]


@contextmanager
def body_outputs(model: Any) -> Iterator[list[Any]]:
    """What the model's body, all of it but the head, returns while this is open."""
    outputs: list[Any] = []
    handle = model.get_decoder().register_forward_hook(lambda _module, _args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()


def logprobs_in_chunks(
    model: Any, inputs: Mapping[str, Any], body_output: Any, rows: Sequence[int], targets: Sequence[int], top: int
) -> PromptEntries:
    """The entry of each of the ``targets`` at these rows of the step, or what is wrong with the first that has none."""
    return prompt_entries(lambda part: _head(model, inputs, body_output, part), rows, targets, top)


def _head(model: Any, inputs: Mapping[str, Any], body_output: Any, rows: Sequence[int]) -> torch.Tensor:
    """Logits ``[len(rows), vocab_size]``."""
    body = model.get_decoder()
    own = vars(body).get("forward")  # batch invariance gives some modules one beside their class's
    body.forward = lambda *_args, **_options: body_output
    try:
        keep = torch.tensor(rows, dtype=torch.int64, device=model.device)
        logits: torch.Tensor = model(**inputs, logits_to_keep=keep).logits[0]
    finally:
        del body.forward
        if own is not None:
            body.forward = own
    return logits

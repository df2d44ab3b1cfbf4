"""Runs requests that ask for log-probabilities, and holds the answers against transformers' log-softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay.messages import PromptLogprobs, SamplingParams, TokenLogprob
from enginebay.testing import RunnerDriver, StartedRunner


def gapless(chunks: Sequence[PromptLogprobs]) -> list[TokenLogprob]:
    """The entries of chunks that follow one another from position 1 on."""
    entries: list[TokenLogprob] = []
    for chunk in chunks:
        assert chunk.start == len(entries) + 1
        entries += chunk.entries
    return entries


def ask(
    started: StartedRunner,
    prompts: Mapping[str, Sequence[int]],
    params: SamplingParams,
    *,
    num_blocks: int,
    chunk: int | None = None,
) -> dict[str, tuple[list[int], list[TokenLogprob]]]:
    """By request: all its tokens, and an entry for each but the first."""
    driver = RunnerDriver(started.runner, num_blocks=num_blocks, block_size=16, shuffle=2)
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt, params, seed=3)
    driver.run(chunk=chunk)
    driver.step({})
    assert not driver.faults, driver.faults
    return {
        request_id: (
            request.token_ids,
            [*gapless(driver.prompt_logprobs.get(request_id, [])), *driver.logprobs[request_id]],
        )
        for request_id, request in driver.requests.items()
    }


class LogSoftmax:
    """transformers in fp32 on one model folder."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        self._torch = torch
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def largest_error(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob]) -> float:
        """How far the entries are from the log-softmax at most, token and neighbours; ranks are checked beside ties."""
        assert [entry.token_id for entry in entries] == list(token_ids[1:])
        with self._torch.inference_mode():
            logits = self._model(input_ids=self._torch.tensor([list(token_ids[:-1])]), use_cache=False).logits[0]
        table = logits.double().log_softmax(-1)
        error = 0.0
        for row, entry in zip(table, entries, strict=True):
            own = row[entry.token_id]
            pairs = [(entry.token_id, entry.logprob), *entry.top]
            error = max(error, *(abs(float(row[token]) - value) for token, value in pairs))
            surely, perhaps = int((row > own + 1e-3).sum()), int((row >= own - 1e-3).sum())
            assert surely < entry.rank <= perhaps, f"rank {entry.rank}: between {surely + 1} and {perhaps} expected"
            assert len({token for token, _ in entry.top}) == len(entry.top)
            if entry.top:
                assert entry.top[-1][1] >= float(row.topk(len(entry.top)).values[-1]) - 1e-3, (
                    "a likelier one is left out"
                )
        return error

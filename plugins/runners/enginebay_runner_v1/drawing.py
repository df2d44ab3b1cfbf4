"""The end of a step: its tokens are drawn where the logits are, and the stages before learn of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from enginebay.messages import GrammarOutput, ModelRunnerOutput
from enginebay.worker import RequestTable, ScheduledRow
from enginebay.worker.answers import PromptEntries, answer_step
from enginebay.worker.verification import draw_step
from enginebay_runner_v1.parallel import Told, WorldShare

__all__ = ["Drawing", "DrawnElsewhere", "Scored"]


@dataclass(frozen=True, slots=True)
class DrawnElsewhere:
    """An ``AsyncModelRunnerOutput``: the answer of a stage to which the last one tells what it draws."""

    output: ModelRunnerOutput
    drawing: Sequence[ScheduledRow]
    told: Told | None

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the tokens."""
        if self.told is None:
            return self.output
        token_ids = {
            part.row.request_id: tuple(drawn) for part, drawn in zip(self.drawing, self.told.token_ids(), strict=True)
        }
        return replace(
            self.output,
            sampled_token_ids=tuple(token_ids.get(request_id, ()) for request_id in self.output.request_ids),
            faults={request_id: "its logits are at fault" for request_id, drawn in token_ids.items() if not drawn},
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """A step that was computed. ``logits`` ``[positions, vocab_size]`` are of the rows that draw, in order, one more
    for each proposal (elsewhere than on the last stage, they mean nothing); ``prompts`` maps the index of a row to its
    prompt's log-probabilities, or to what is wrong with them."""

    scheduled: Sequence[ScheduledRow]
    logits: torch.Tensor
    prompts: Mapping[int, PromptEntries]


class Drawing:
    """Draws for one rank, into its table.

    A stage before the last one answers for a step when it has computed it: what is drawn is waited for only when a step
    comes in which these requests stand again. So it goes on with others while the last stage draws.
    """

    def __init__(self, table: RequestTable, eos_token_ids: Sequence[int]) -> None:
        self._table = table
        self._eos_token_ids = eos_token_ids
        self._untold: deque[tuple[list[ScheduledRow], Told]] = deque()

    def finish(
        self, step: Scored, share: WorldShare, grammar: GrammarOutput | None
    ) -> ModelRunnerOutput | DrawnElsewhere:
        """What the rank, with this share of the model, answers for the step."""
        drawing = [part for part in step.scheduled if part.samples]
        if not share.answers:
            told = share.hear(_counts(drawing)) if drawing else None
            if told is not None:
                self._untold.append((drawing, told))
            return DrawnElsewhere(self._table.finish_step({}), drawing, told)
        drawn = draw_step(step.logits, drawing, self._eos_token_ids, grammar)
        share.tell([drawn.token_ids.get(part.row.request_id, []) for part in drawing], _counts(drawing))
        return answer_step(self._table, step.scheduled, drawn, step.prompts)

    def catch_up(self, request_ids: Collection[str]) -> None:
        """Before a step that says something of these requests: know all that was drawn for them."""
        while self._untold:
            drawing, told = self._untold[0]
            if not told.is_here() and not any(
                part.row.request_id in request_ids for pending, _ in self._untold for part in pending
            ):
                return
            self._untold.popleft()
            for part, token_ids in zip(drawing, told.token_ids(), strict=True):
                self._table.learn(part.row, token_ids)


def _counts(drawing: Sequence[ScheduledRow]) -> list[int]:
    """How many tokens each may draw."""
    return [1 + len(part.draft_token_ids) for part in drawing]

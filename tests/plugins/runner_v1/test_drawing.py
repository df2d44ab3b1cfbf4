"""A stage before the last one goes on with other requests while the last one draws, and never with the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from enginebay.interfaces import AsyncModelRunnerOutput
from enginebay.messages import NewRequest, RunningRequest, SamplingParams, SchedulerOutput
from enginebay.worker import RequestTable
from enginebay_runner_v1.drawing import Drawing, Scored


class Told:
    """The last stage's tokens, which ``come`` when the test says so."""

    def __init__(self, token_ids: list[list[int]]) -> None:
        self.ids, self.come, self.waited = token_ids, False, False

    def is_here(self) -> bool:
        return self.come

    def token_ids(self) -> list[list[int]]:
        self.waited = self.waited or not self.come
        self.come = True
        return self.ids


class Share:
    """A first stage."""

    answers = False

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.asked: list[list[int]] = []

    def hear(self, counts: Sequence[int]) -> Told:
        self.asked.append(list(counts))
        self.told.append(Told([[50 + len(self.told)] for _ in counts]))
        return self.told[-1]


class Stage:
    def __init__(self) -> None:
        self.table, self.share = RequestTable(), Share()
        self.drawing = Drawing(self.table, ())
        self.steps = 0

    def step(self, *, new: Sequence[str] = (), running: dict[str, int] | None = None, drafts: int = 0) -> Any:
        """New requests of two tokens, and running ones from so many computed tokens on."""
        output = SchedulerOutput(
            step=self.steps,
            new=tuple(
                NewRequest(
                    request_id=name,
                    token_ids=(1, 2),
                    num_prompt_tokens=2,
                    params=SamplingParams(),
                    seed=0,
                    block_ids=((0,),),
                    num_computed_tokens=0,
                )
                for name in new
            ),
            running=tuple(
                RunningRequest(request_id=name, num_computed_tokens=start, draft_token_ids=(9,) * drafts)
                for name, start in (running or {}).items()
            ),
            num_scheduled_tokens={**dict.fromkeys(running or {}, 1 + drafts), **dict.fromkeys(new, 2)},
        )
        self.steps += 1
        self.drawing.catch_up((*output.num_scheduled_tokens, *output.preempted, *output.finished))
        scheduled = self.table.begin_step(output)
        return self.drawing.finish(Scored(scheduled, torch.empty(0), {}), self.share, None)  # type: ignore[arg-type]  # a share without a model

    def known(self, name: str) -> list[int]:
        row = self.table.get(name)
        assert row is not None
        return row.token_ids


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_other_requests_go_on_and_the_same_one_waits(stage: Stage) -> None:
    assert isinstance(stage.step(new=["a"]), AsyncModelRunnerOutput)
    stage.step(new=["b"])
    assert [told.waited for told in stage.share.told] == [False, False]
    stage.step(running={"a": 2})
    assert [told.waited for told in stage.share.told] == [True, False, False]
    assert stage.known("a") == [1, 2, 50]
    assert stage.known("b") == [1, 2]
    stage.step(running={"b": 2, "a": 3})
    assert (stage.known("a"), stage.known("b")) == ([1, 2, 50, 52], [1, 2, 51])


def test_what_has_come_is_taken_without_being_needed(stage: Stage) -> None:
    stage.step(new=["a"])
    stage.share.told[0].come = True
    stage.step(new=["b"])
    assert stage.known("a") == [1, 2, 50]
    assert not stage.share.told[0].waited


def test_it_asks_for_as_many_tokens_as_may_be_drawn(stage: Stage) -> None:
    stage.step(new=["a", "b"])
    stage.step(running={"a": 2}, drafts=3)
    assert stage.share.asked == [[1, 1], [4]]


def test_whoever_reads_the_answer_waits_for_the_tokens(stage: Stage) -> None:
    output = stage.step(new=["a", "b"]).get_output()
    assert output.sampled_token_ids == ((50,), (50,))
    assert stage.share.told[0].waited
    stage.share.told[0].ids = [[], [50]]
    stage.step(running={"b": 2})
    (told,) = stage.share.told[1:]
    told.ids = [[]]  # its logits were at fault on the last stage
    stage.drawing.catch_up(["b"])
    assert stage.known("b") == [1, 2, 50]

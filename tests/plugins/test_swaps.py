"""Executor, runner and number of ranks exchanged under real models while requests run: the tokens of an engine that was
left alone. R9.

Another number of ranks and another runner may round otherwise: the tiny models' scores are far enough apart for it to
change no token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.lending import Loan
from enginebay.messages import Control, Phase, RestartWorkers, Scale, Swap
from support.worker_life import PROMPTS, Starter, answers, config, groups, planned

Tiny = Callable[[str], Path]

PARAMS = [
    SamplingParams(max_tokens=48, ignore_eos=True),
    SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=11),
    SamplingParams(max_tokens=44, ignore_eos=True, temperature=1.0, seed=12, top_p=0.9),
]


@pytest.fixture
def start() -> Iterator[Starter]:
    with groups() as starter:
        yield starter


def run(core: EngineCore, changes: Sequence[Control], *, every: int = 5) -> dict[str, list[int]]:
    """The tokens of all requests; after so many steps each, a change."""
    found: dict[str, list[int]] = {}
    left = list(changes)
    for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        core.add_request(Ask(request_id=f"r{index}", prompt_token_ids=tuple(prompt), params=params))
    steps = 0
    while core.has_work():
        for output in core.step()[0]:
            tokens = found.setdefault(output.request_id, [])
            assert output.offset == len(tokens)
            assert not output.error
            tokens.extend(output.token_ids)
        steps += 1
        if left and steps % every == 0:
            assert core.num_unfinished == len(PROMPTS), "a change under load"
            core.control(left.pop(0))
    assert not left, "all changes were made"
    return found


def check(core: EngineCore, num_ranks: int) -> None:
    workers = core.parts.roster.statuses()
    assert [one.phase for one in workers] == [Phase.READY] * num_ranks
    assert core.stats().unfinished == 0


@pytest.mark.soak
def test_other_processes_take_over_from_this_one(tiny: Tiny, start: Starter) -> None:  # R9
    one = planned("v1", tiny("llama"))
    expected = run(start(one), ())
    core = start(one)
    assert run(core, [Swap(executor="mp"), RestartWorkers()]) == expected
    check(core, 1)
    assert core.in_force["executor"] == "mp"


@pytest.mark.soak
@pytest.mark.parametrize("exclusive", [False, True])
def test_everything_is_exchanged(tiny: Tiny, start: Starter, exclusive: bool) -> None:  # R9
    one = planned("v1", tiny("llama"), "executor.use=mp")
    expected = run(start(one), ())
    core = start(one)
    changes: list[Control] = [
        Scale(tensor_parallel_size=2, exclusive=exclusive),
        Swap(scheduler="priority"),
        RestartWorkers(),
        Scale(tensor_parallel_size=1, exclusive=exclusive),
        Swap(runner="v2", executor="uni", exclusive=exclusive),
        Swap(runner="v1", sets=("executor.options={}",), exclusive=exclusive),
    ]
    assert run(core, changes) == expected
    check(core, 1)


@pytest.mark.soak
def test_a_group_that_is_restarted_has_its_weights_from_another(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    lent: list[int] = []
    leave = Loan.__exit__

    def left(self: Loan, *ended: Any) -> None:
        leave(self, *ended)
        lent.append(len(self._ranks))

    monkeypatch.setattr(Loan, "__exit__", left)
    model = tiny("llama")
    with LLM(config("v1", model), sets=("parallel.data_parallel_size=2",)) as llm:
        expected = answers(llm)
        assert llm.swap(scheduler="priority")["scheduler"] == "priority"
        llm.restart_workers()
        assert lent == [1, 1]
        assert answers(llm) == expected
        assert llm.scale(data_parallel=3) == {"groups": "3"}, "a new group has the parts that are in force"
        assert llm.in_force["scheduler"] == "priority"
        llm.restart_workers()
        assert lent == [1] * 6
        assert answers(llm) == expected

"""The chaos tests find what they are there to find, and an interrupted run goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from enginebay import EnginebayError, FinishReason, RequestOutput, SamplingParams
from support import chaos_soak
from support.chaos_load import Ask, Load, Tally, counts, pool


def delta(offset: int, *tokens: int, finish: FinishReason | None = None, choice: int = 0) -> RequestOutput:
    return RequestOutput(
        request_id="r", offset=offset, token_ids=tokens, text="x" * len(tokens), finish_reason=finish, choice=choice
    )


GOOD = [delta(0, 7), delta(1, 8, 9, finish=FinishReason.LENGTH)]


class Client:
    """Answers each request with these deltas; the last may be an error."""

    def __init__(self, answer: list[Any]) -> None:
        self.answer = answer

    def stream(self, prompt: Any, params: Any) -> Any:
        for one in self.answer:
            if isinstance(one, Exception):
                raise one
            yield one


def counted(answer: list[Any], params: SamplingParams | None = None) -> set[str]:
    """Which counters rise; each of eight threads has asked once, or more often."""
    tally = Tally()
    load = Load([Ask(prompt=[1], params=params or SamplingParams())], tally)
    load.expected = [[[[7, 8, 9], "xxx", "length"]]]
    client: Any = Client(answer)
    load.run(client, lambda: tally.requests + tally.lost >= 1)
    return {name for name, number in counts(tally).items() if number and name != "requests"}


def test_what_is_as_it_should_be_is_not_counted() -> None:
    assert counted(GOOD) == set()


@pytest.mark.parametrize(
    ("answer", "rises"),
    [
        ([GOOD[0], delta(2, 9, finish=FinishReason.LENGTH)], {"lost", "different"}),
        ([GOOD[0], delta(0, 7), GOOD[1]], {"duplicated", "different"}),
        ([*GOOD, delta(3, finish=FinishReason.LENGTH)], {"duplicated"}),
        ([delta(0, 7, 8, 4, finish=FinishReason.LENGTH)], {"different"}),
        ([delta(0, 7, 8, 9, finish=FinishReason.STOP)], {"different"}),
        ([delta(0, 7, 8, 9)], {"lost", "different"}),
        ([delta(0, 7, 8, 9, finish=FinishReason.ERROR)], {"lost", "different"}),
        ([GOOD[0], EnginebayError("gone")], {"lost"}),
    ],
)
def test_each_wrong_is_counted(answer: list[Any], rises: set[str]) -> None:
    assert counted(answer) == rises


def test_a_choice_that_does_not_end_is_lost() -> None:
    assert "lost" in counted(GOOD, SamplingParams(n=2, temperature=1.0))


def test_what_is_learned_is_what_is_expected(tmp_path: Path) -> None:
    load = Load(pool(5), Tally())
    client: Any = Client(GOOD)
    load.learn(client, tmp_path / "answers.json")
    assert json.loads((tmp_path / "answers.json").read_text()) == [[[[7, 8, 9], "xxx", "length"]]] * 5


@pytest.fixture
def soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``main`` over rounds that are told; a round that is an exception ends it."""

    def run(*rounds: Any, faults: int) -> tuple[int, dict[str, Any], list[tuple[str, int, int]]]:
        asked: list[tuple[str, int, int]] = []
        left = list(rounds)

        def run_round(world: str, model: str, seed: int, faults: int, folder: Path) -> dict[str, Any]:
            asked.append((world, seed, faults))
            told = left.pop(0)
            if isinstance(told, BaseException):
                raise told
            return {"world": world, "seed": seed, "faults": faults, "missed": 0, "requests": 9, **told}

        monkeypatch.setattr(chaos_soak, "run_round", run_round)
        argv = ["--faults", str(faults), "--model", "fake", "--state", str(tmp_path / "state")]
        monkeypatch.setattr(sys, "argv", ["chaos", *argv])
        with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
            chaos_soak.main()
        said = capsys.readouterr().out.splitlines()
        code = ended.value.code if isinstance(ended.value, SystemExit) else -1
        return int(code or 0), json.loads(said[-1]) if said else {}, asked

    return run


def test_an_interrupted_run_goes_on_with_its_next_seed(soak: Any, tmp_path: Path) -> None:
    code, told, asked = soak({}, {}, KeyboardInterrupt(), faults=30)
    assert (code, told) == (-1, {})
    assert asked == [("mp", 0, 10), ("tensor", 1, 10), ("replicas", 2, 10)]
    code, told, asked = soak({}, faults=30)
    assert asked == [("replicas", 2, 10)]
    assert (code, told["faults"], told["requests"], told["lost"]) == (0, 30, 27, 0)
    assert not (tmp_path / "state").exists()  # the next run is another one


def test_a_bad_round_is_named_by_its_seed_and_the_others_run(soak: Any, tmp_path: Path) -> None:
    code, told, _ = soak({"different": 2}, RuntimeError("no word"), {}, faults=20)
    assert (code, told["different"], told["lost"], told["faults"]) == (1, 2, 1, 20)
    assert [(bad["world"], bad["seed"]) for bad in told["bad"]] == [("mp", 0), ("tensor", 1)]
    assert (tmp_path / "state").exists()  # with the logs
    assert not (tmp_path / "state" / "state.json").exists()

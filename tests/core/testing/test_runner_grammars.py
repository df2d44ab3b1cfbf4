"""The runners' suite fails a runner that declares ``grammar`` and does not keep to it, each by the check for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from enginebay.interfaces import RunnerCapabilities
from enginebay.messages import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from enginebay.testing import RunnerSuite, StartedRunner
from enginebay.testing._runner_grammars import GrammarChecks
from support.lucid_runner import FEATURES, Lucid

from .test_runner_features import BLOCK_SIZE, CONTEXT, MODEL

CHECKS = sorted(name for name in vars(GrammarChecks) if name.startswith("test_"))
ABLE = RunnerCapabilities(features=FEATURES, max_draft_tokens=3)


def run(check: str, runner: Any, capabilities: RunnerCapabilities = ABLE) -> None:
    getattr(RunnerSuite(), check)(StartedRunner(runner, capabilities, MODEL), BLOCK_SIZE)


@pytest.mark.parametrize("check", CHECKS)
def test_the_whole_one_passes(check: str) -> None:
    run(check, Lucid(CONTEXT))


class Altered(Lucid):
    """Draws under masks that were altered."""

    def __init__(self, masks: Callable[[GrammarOutput, Lucid], GrammarOutput | None]) -> None:
        super().__init__(CONTEXT)
        self.masks = masks

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        altered = None if grammar_output is None else self.masks(grammar_output, self)
        return super().sample_tokens(altered)


class DrawsAtOnce(Lucid):
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        output = super().execute_model(scheduler_output)
        return self.sample_tokens(None) if output is None else output


class BiasesLast(Lucid):
    """Adds the bias to what the masks have left."""

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        biased = any(part.row.params.logit_bias for part in self.pending[0])
        return super().sample_tokens(None if biased else grammar_output)


class KeepsItsMasks(Lucid):
    kept: GrammarOutput | None = None

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        self.kept = grammar_output or self.kept
        return super().sample_tokens(self.kept)


class KnowsNoProposals(Lucid):
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        running = tuple(replace(one, draft_token_ids=()) for one in scheduler_output.running)
        drafts = {one.request_id: len(one.draft_token_ids) for one in scheduler_output.running}
        counts = {name: n - drafts.get(name, 0) for name, n in scheduler_output.num_scheduled_tokens.items()}
        return super().execute_model(replace(scheduler_output, running=running, num_scheduled_tokens=counts))


class KeepsToMinTokens(Altered):
    """Draws something else where only the end is allowed, for as long as ``min_tokens`` says."""

    def __init__(self) -> None:
        super().__init__(lambda grammar, runner: None if _rows(grammar)[0] == _one(MODEL.eos_token_ids[0]) else grammar)


def _one(token: int) -> bytes:
    return (1 << token).to_bytes((MODEL.vocab_size + 31) // 32 * 4, "little")


def _rows(grammar: GrammarOutput) -> list[bytes]:
    size = 4 * grammar.words_per_row
    return [grammar.bitmask[at : at + size] for at in range(0, len(grammar.bitmask), size)]


def only_the_lowest(grammar: GrammarOutput, runner: Lucid) -> GrammarOutput:
    """Of what each mask allows the token with the lowest id."""
    numbers = [int.from_bytes(row, "little") for row in _rows(grammar)]
    rows = [(number & -number).to_bytes(4 * grammar.words_per_row, "little") for number in numbers]
    return replace(grammar, bitmask=b"".join(rows))


def the_first_for_all(grammar: GrammarOutput, runner: Lucid) -> GrammarOutput:
    """Each position of a request has the mask of its first one."""
    rows = _rows(grammar)
    return replace(grammar, bitmask=b"".join(rows[grammar.request_ids.index(name)] for name in grammar.request_ids))


def by_place(grammar: GrammarOutput, runner: Lucid) -> GrammarOutput:
    """The masks are taken in the order of the batch, whomever they name."""
    drawing = [part.row.request_id for part in runner.pending[0]]
    named = sorted(set(grammar.request_ids), key=drawing.index)
    if len(named) < len(grammar.request_ids):
        return grammar
    return replace(grammar, request_ids=tuple(named))


def for_everybody(grammar: GrammarOutput, runner: Lucid) -> GrammarOutput:
    """Who has no mask has the last one."""
    others = [p.row.request_id for p in runner.pending[0] if p.row.request_id not in grammar.request_ids]
    return replace(
        grammar,
        request_ids=(*grammar.request_ids, *others),
        bitmask=grammar.bitmask + _rows(grammar)[-1] * len(others),
    )


class CountsPartsOfPrompts(Lucid):
    """Takes the n-th mask for the n-th request of the batch, also when that one draws nothing."""

    batch: tuple[str, ...] = ()

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        self.batch = tuple(scheduler_output.num_scheduled_tokens)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        if grammar_output is not None and len(set(grammar_output.request_ids)) == len(grammar_output.request_ids):
            grammar_output = replace(grammar_output, request_ids=self.batch[: len(grammar_output.request_ids)])
        return super().sample_tokens(grammar_output)


BROKEN: dict[str, tuple[str, Callable[[], Lucid]]] = {
    "masks ignored": ("test_grammar_allows_few", lambda: Altered(lambda grammar, runner: None)),
    "the bias comes last": ("test_grammar_allows_few", lambda: BiasesLast(CONTEXT)),
    "does not wait for its masks": ("test_grammar_allows_few", lambda: DrawsAtOnce(CONTEXT)),
    "takes any that is allowed": ("test_grammar_allows_the_best", lambda: Altered(only_the_lowest)),
    "keeps its masks": ("test_grammar_of_one_step", lambda: KeepsItsMasks(CONTEXT)),
    "masks by place": ("test_grammar_beside_free_ones", lambda: Altered(by_place)),
    "masks for everybody": ("test_grammar_beside_free_ones", lambda: Altered(for_everybody)),
    "masks for who draws nothing": (
        "test_grammar_beside_a_part_of_a_prompt",
        lambda: CountsPartsOfPrompts(CONTEXT),
    ),
    "one mask for all positions": ("test_grammar_with_proposals", lambda: Altered(the_first_for_all)),
    "proposals unknown": ("test_grammar_with_proposals", lambda: KnowsNoProposals(CONTEXT)),
    "min_tokens wins": ("test_grammar_wins_over_min_tokens", KeepsToMinTokens),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_one_is_caught(what: str) -> None:
    check, make = BROKEN[what]
    run(check, Lucid(CONTEXT))
    with pytest.raises(AssertionError):
        run(check, make())


def test_each_check_catches_a_broken_one() -> None:
    assert {check for check, _ in BROKEN.values()} == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_not_declared_is_not_asked(check: str) -> None:
    """Masks of a runner that does not know of them."""
    run(check, DrawsAtOnce(CONTEXT), RunnerCapabilities(features=FEATURES - {"grammar"}, max_draft_tokens=3))


def test_all_checks_are_in_the_suite() -> None:
    members = {name for name, _ in inspect.getmembers(RunnerSuite, inspect.isfunction)}
    assert members >= set(CHECKS)

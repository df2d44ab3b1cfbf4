"""What is proposed by prompt lookup, and what the core makes of proposals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.speculation import NgramProposer, propose_ngram
from enginebay.errors import EngineDead, PolicyFailed
from enginebay.interfaces import NoOptions, Scheduler
from enginebay.messages import RunningRequest, SchedulerOutput
from enginebay.worker import ScheduledRow
from support.fake_engine import DEFAULT, FakeEngine, draw_text
from support.whole_scheduler import OverMechanics

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def proposed(text: str, at_most: int = 4, *, shortest: int = 2, longest: int = 4) -> str:
    return "".join(map(chr, propose_ngram([*text.encode()], at_most, shortest=shortest, longest=longest)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat sat. the ", "cat "),
        ("abcd, xbcd; abc", "d, x"),  # the longest match: three tokens stand before the comma, two before the colon
        ("abX abY ab", "Y ab"),  # of equal ones the latest
        ("xyz", ""),
        ("x", ""),
        ("", ""),
        ("ababab", "abab"),  # what follows is the text's own end, and goes on in a circle
        ("zzz", "zzzz"),
    ],
)
def test_what_followed_the_last_tokens_where_they_stood_before(text: str, expected: str) -> None:
    assert proposed(text) == expected


def test_how_many_tokens_must_match_is_the_config_s() -> None:
    assert proposed("a1 b2 c1 ", shortest=2) == "b2 c"
    assert proposed("a1 b2 c1 ", shortest=3) == ""
    assert proposed("pqrs1 xxrs2 yyqrs", shortest=1, longest=2) == "2 yy"  # two of each: the latest
    assert proposed("pqrs1 xxrs2 yyqrs", shortest=1, longest=3) == "1 xx"


@given(tokens=TOKENS, at_most=st.integers(0, 9), shortest=st.integers(1, 3), more=st.integers(0, 3))
def test_every_proposal_continues_a_longest_match(tokens: list[int], at_most: int, shortest: int, more: int) -> None:
    longest = shortest + more
    got = propose_ngram(tokens, at_most, shortest=shortest, longest=longest)
    assert propose_ngram(tokens, at_most + 3, shortest=shortest, longest=longest)[: len(got)] == got
    end = len(tokens)

    def match(place: int) -> int:
        length = 0
        while length < min(longest, place) and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length

    best = max((match(place), place) for place in range(1, end)) if end > 1 else (0, 0)
    if best[0] < shortest:
        assert got == ()
        return
    assert len(got) == at_most
    text = [*tokens, *got]
    assert [text[best[1] + i] for i in range(at_most)] == list(got)


@given(prompt=TOKENS, pieces=st.lists(TOKENS, max_size=6), at_most=st.integers(0, 6))
def test_what_was_learned_between_calls_changes_nothing(
    prompt: list[int], pieces: list[list[int]], at_most: int
) -> None:
    propose = NgramProposer(shortest=2, longest=4, max_tokens=5)
    told, output, other = tuple(prompt), list[int](), list[int]()
    for piece in pieces:
        output.extend(piece)
        other.append(1)
        propose((9, 9, 9), other, at_most)  # a request beside it
        expected = propose_ngram([*prompt, *output], min(at_most, 5), shortest=2, longest=4)
        assert propose(told, output, at_most) == expected
        assert propose([*prompt], tuple(output), at_most) == expected  # other objects, the same tokens


def test_a_shorter_answer_under_a_known_object_is_looked_at_anew() -> None:
    propose = NgramProposer(shortest=2, longest=4, max_tokens=4)
    prompt, output = (1, 2, 3), [1, 2]
    assert propose(prompt, output, 2) == (3, 1)
    del output[:]
    output += [7]
    assert propose(prompt, output, 2) == (3, 1)[:0]


def test_only_so_much_is_remembered() -> None:
    propose = NgramProposer(shortest=2, longest=4, max_tokens=4)
    for index in range(3000):
        propose((index, index + 1), [index], 4)
    assert len(propose._pasts) == 1024
    assert propose(tuple(range(100_000)), [], 4) == ()
    assert len(next(reversed(propose._pasts.values()))[2]._token_ids) == 4096


# What the core makes of them


def right(prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
    """The fake model's own answer."""
    return tuple(DEFAULT.encode()[(len(output) + i) % len(DEFAULT)] for i in range(at_most))


def wrong(prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
    return tuple((token + 1) % 250 for token in right(prompt, output, at_most))


def half(prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
    return (*right(prompt, output, at_most)[:2], *wrong(prompt, output, at_most)[2:])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("propose", "steps", "held"), [(right, 5, 15), (wrong, 20, 0), (half, 8, 12)])
def test_accepted_proposals_save_steps_and_change_no_token(propose: object, steps: int, held: int, depth: int) -> None:
    engine = FakeEngine(depth=depth, propose=propose)  # type: ignore[arg-type]  # one of the three above
    engine.add("a", max_tokens=20)
    engine.run()
    assert engine.texts == {"a": DEFAULT[:20]}
    ran = [one for one in engine.executor.steps if one.num_scheduled_tokens]
    stats = engine.core.stats()
    if depth == 1:
        assert len(ran) == steps
        assert stats.accepted_tokens == held
    assert stats.proposed_tokens == sum(one.num_draft_tokens for one in ran)
    assert stats.committed_tokens == 20
    reports = engine.hooks.steps
    assert sum(one.num_proposed_tokens for one in reports) == stats.proposed_tokens
    assert sum(one.num_accepted_tokens for one in reports) == stats.accepted_tokens
    assert engine.kv.num_free_blocks == 64


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_among_accepted_proposals_trims_the_rest(depth: int) -> None:  # S7
    engine = FakeEngine(depth=depth, propose=right)
    engine.add("a", max_tokens=20, stop=("ck",))
    engine.add("b", max_tokens=20, stop_token_ids=(ord("q"),))
    engine.add("c", max_tokens=2)
    engine.run()
    assert engine.texts == {"a": "the qui", "b": "the ", "c": "th"}
    assert bytes(engine.tokens["b"]) == b"the q"


@pytest.mark.parametrize("depth", [1, 2])
def test_under_a_grammar_proposals_are_verified_under_its_masks(depth: int) -> None:
    engine = FakeEngine(depth=depth, propose=right, constrained=True)
    engine.add("a", max_tokens=20)
    engine.add("b", "say:the end", max_tokens=20)  # proposals that leave the grammar after "the "
    engine.run()
    assert engine.texts == {"a": DEFAULT[:20], "b": "the end"}
    assert engine.core.stats().accepted_tokens > 15


class Proposes(OverMechanics):
    """Puts proposals where ``at`` says, whatever the step is."""

    at = 0
    starts_over = False

    def schedule(self) -> SchedulerOutput:
        return self.changed(self.inner.schedule())

    def changed(self, output: SchedulerOutput) -> SchedulerOutput:
        counts, running = dict(output.num_scheduled_tokens), list(output.running)
        for index, one in enumerate(running):
            counts[one.request_id] += 2
            start = one.num_computed_tokens + self.at
            running[index] = RunningRequest(
                request_id=one.request_id, num_computed_tokens=start, draft_token_ids=(1, 2)
            )
        return SchedulerOutput(step=output.step, new=output.new, running=tuple(running), num_scheduled_tokens=counts)


class TooEarly(Proposes):
    at = -1


@pytest.mark.parametrize(
    ("scheduler", "depth", "message"),
    [
        (TooEarly, 1, "scheduled 2 proposals for request 'a', and not right behind its 3 known tokens"),
        (Proposes, 2, "scheduled 2 proposals for request 'a', and not right behind its 3 known tokens"),
    ],
)
def test_a_scheduler_that_puts_them_elsewhere_is_named(
    scheduler: type[Scheduler[NoOptions]], depth: int, message: str
) -> None:
    engine = FakeEngine(scheduler=scheduler, depth=depth)
    engine.add("a")
    with pytest.raises(PolicyFailed) as caught:
        engine.run()
    assert str(caught.value) == f"scheduler 'fake' 1.0 {message}"


def test_a_runner_that_draws_more_than_was_proposed_is_named() -> None:
    def greedy(one: ScheduledRow) -> tuple[int, ...]:
        return draw_text(one) * (4 if one.row.num_computed_tokens > 1 else 1)

    engine = FakeEngine(propose=right, draw=greedy, max_draft_tokens=2)
    engine.executor._draw = lambda one, grammar: greedy(one)  # type: ignore[method-assign]  # does not verify
    engine.executor.table._check_verified = lambda scheduled, ids: None  # type: ignore[method-assign]  # nor its table
    engine.add("a")
    with pytest.raises(EngineDead) as caught:
        engine.run()
    said = "runner 'fake' 1.0 drew 4 tokens for request 'a' in step 1; 2 were proposed"
    assert str(caught.value) == f"the engine stopped: {said}"

"""The store: compiled once for all, a state that is a function of what was committed, looked ahead on a copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import InvalidRequest, RequestFailed
from enginebay.messages import GrammarOutput, StructuredOutput
from enginebay.structured import GrammarRejected, GrammarStore, GrammarUnavailable
from support.fake_grammars import EOS, VOCAB, FakeCompiler, a_store

YES_NO = StructuredOutput(choice=("yes", "no", "not at all"))


def rows_of(grammar: GrammarOutput) -> list[tuple[str, set[int]]]:
    """Each row's request, and the tokens that it may draw."""
    size = 4 * grammar.words_per_row
    rows = [grammar.bitmask[at : at + size] for at in range(0, len(grammar.bitmask), size)]
    sets = [{t for t in range(8 * size) if row[t // 8] >> t % 8 & 1} for row in rows]
    return list(zip(grammar.request_ids, sets, strict=True))


def allowed(store: GrammarStore, request_id: str) -> set[int]:
    ((_, tokens),) = rows_of(store.masks([(request_id, ())]))
    return tokens


def test_a_request_goes_through_its_grammar() -> None:
    store = a_store(FakeCompiler())
    store.open("a", YES_NO)
    assert (store.ready("a"), store.error("a")) == (True, None)
    assert allowed(store, "a") == set(b"yn")
    assert store.accept("a", tuple(b"no")) == 2
    assert allowed(store, "a") == {ord("t"), EOS}
    assert store.accept("a", (EOS,)) == 1
    store.close("a")
    assert len(store) == 0


def test_a_complete_answer_may_only_end() -> None:
    store = a_store(FakeCompiler())
    store.open("a", YES_NO)
    assert store.ready("a")
    store.accept("a", tuple(b"yes"))
    assert allowed(store, "a") == {EOS}


def test_each_has_a_state_of_its_own() -> None:
    compiler = FakeCompiler()
    store = a_store(compiler)
    for request_id in "abc":
        store.open(request_id, YES_NO)
        assert store.ready(request_id)
    store.accept("a", b"y")
    assert allowed(store, "b") == set(b"yn")
    store.close("a")
    store.open("a", YES_NO)
    assert store.ready("a")
    assert (len(compiler.asked), allowed(store, "a")) == (4, set(b"yn"))


def test_one_that_cannot_be_compiled() -> None:  # S15
    store = a_store(FakeCompiler())
    store.open("a", StructuredOutput(regex="(a"))
    assert store.ready("a")
    error = store.error("a")
    assert (type(error), str(error)) == (InvalidRequest, "structured.regex cannot be used: (a")
    assert error is not None
    assert error.param == "structured.regex"


def test_what_is_no_grammars_fault_is_no_clients_either() -> None:
    compiler = FakeCompiler()
    compiler.error = GrammarUnavailable("no memory")
    store = a_store(compiler)
    store.open("a", YES_NO)
    assert store.ready("a")
    error = store.error("a")
    assert (type(error), str(error)) == (RequestFailed, "no memory")
    compiler.error = None
    store.open("b", YES_NO)
    assert store.ready("b")
    assert store.error("b") is None


def test_a_request_waits_until_it_is_compiled() -> None:
    compiler = FakeCompiler(held=True)
    store = a_store(compiler)
    store.open("a", YES_NO, tuple(b"n"))
    assert not store.ready("a")
    compiler.go()
    assert store.ready("a")
    assert allowed(store, "a") == {ord("o")}, "what was committed before counts"


def test_nobody_waits_and_it_is_not_compiled() -> None:
    compiler = FakeCompiler(held=True)
    store = a_store(compiler)
    store.open("a", YES_NO)
    store.open("b", YES_NO)
    store.close("a")
    assert [future.cancelled() for _, future in compiler.waiting] == [True, False], "b still waits"
    store.close("b")
    assert compiler.waiting[1][1].cancelled()
    store.open("c", YES_NO)
    compiler.go()
    assert store.ready("c")
    assert store.error("c") is None


def test_a_token_that_does_not_fit() -> None:  # S15
    store = a_store(FakeCompiler())
    store.open("a", YES_NO)
    assert store.ready("a")
    with pytest.raises(GrammarRejected, match=r"^token 120 does not fit its grammar$"):
        store.accept("a", tuple(b"x"))
    with pytest.raises(GrammarRejected, match=r"^token 120 does not fit its grammar$"):
        store.accept("a", tuple(b"y"))


def test_an_end_that_comes_too_early() -> None:  # S15
    store = a_store(FakeCompiler())
    store.open("a", YES_NO)
    assert store.ready("a")
    with pytest.raises(GrammarRejected, match=r"^token 257 ends the answer before its grammar does$"):
        store.accept("a", (*b"ye", EOS))


def test_a_grammar_that_cannot_be_followed_any_further() -> None:  # S15
    store = a_store(FakeCompiler(stuck=[b"y"]))
    store.open("a", YES_NO)
    store.open("b", YES_NO)
    assert store.ready("a")
    assert store.ready("b")
    store.accept("a", b"y")
    assert store.error("a") is None
    store.masks([("a", ()), ("b", ())])
    assert str(store.error("a")) == "it is too complex"
    with pytest.raises(GrammarRejected, match=r"^it is too complex$"):
        store.accept("a", (EOS,))
    assert store.accept("b", b"n") == 1


def test_proposals_are_looked_at_on_a_copy() -> None:
    store = a_store(FakeCompiler())
    store.open("a", YES_NO)
    assert store.ready("a")
    rows = rows_of(store.masks([("a", (*b"no", EOS))]))
    assert rows[:3] == [("a", set(b"yn")), ("a", set(b"o")), ("a", {ord("t"), EOS})]
    assert len(rows) == 4, "one row more than there are proposals"
    assert allowed(store, "a") == set(b"yn")


texts = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5, unique=True)


@given(texts, st.lists(st.sampled_from([*b"ab", EOS]), max_size=8))
def test_rows_of_proposals_are_those_of_the_tokens_one_by_one(words: list[str], drafts: list[int]) -> None:
    store, one_by_one = a_store(FakeCompiler()), a_store(FakeCompiler())
    for each in (store, one_by_one):
        each.open("a", StructuredOutput(choice=tuple(words)))
        assert each.ready("a")
    rows = [tokens for _, tokens in rows_of(store.masks([("a", tuple(drafts))]))]
    for number, draft in enumerate(drafts):
        assert rows[number] == allowed(one_by_one, "a")
        if draft not in rows[number] or draft == EOS:
            break
        one_by_one.accept("a", (draft,))


@given(texts, st.integers(0, 6))
def test_the_state_is_a_function_of_what_is_committed(words: list[str], cut: int) -> None:
    written = words[0].encode()[:cut]
    store = a_store(FakeCompiler())
    store.open("a", StructuredOutput(choice=tuple(words)))
    assert store.ready("a")
    for token in written:
        store.accept("a", (token,))
        store.masks([("a", tuple(b"ab"))])
    store.open("rebuilt", StructuredOutput(choice=tuple(words)), tuple(written))
    assert store.ready("rebuilt")
    assert allowed(store, "a") == allowed(store, "rebuilt")


def test_masks_have_whole_words() -> None:
    store = a_store(FakeCompiler())
    store.open("a", YES_NO)
    assert store.ready("a")
    grammar = store.masks([("a", ())])
    assert (grammar.words_per_row, len(grammar.bitmask)) == ((VOCAB + 31) // 32, 4 * grammar.words_per_row)

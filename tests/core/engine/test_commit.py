"""What of a runner's output comes to exist. S7, each condition by its own test and stop strings by a property."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.commit import Ends, StopStrings, TextState, Trimmed, no_text, trim
from enginebay.messages import FinishReason, SamplingParams
from enginebay.text import IncrementalDetokenizer
from support.fake_engine import EOS, Bytes, FakeEngine
from support.tiny_tokenizers import KINDS


def commit(drawn: list[int], *, before: int = 0, max_model_len: int = 100, prompt: int = 2, **params: Any) -> Trimmed:
    asked = SamplingParams(**params)
    ends = Ends.of(asked, num_prompt_tokens=prompt, eos_token_ids=frozenset({EOS}), max_model_len=max_model_len)
    text = TextState(asked, Bytes())
    return trim(drawn, ends=ends, min_tokens=asked.min_tokens, text=text, num_output_tokens=before)


def test_eos_ends_and_stays_out_of_the_text() -> None:  # S7
    got = commit([*b"ab", EOS])
    assert (got.token_ids, got.text, got.finish, got.stop_reason) == ((97, 98, EOS), "ab", FinishReason.STOP, None)


def test_surplus_after_a_stop_never_existed() -> None:  # S7
    assert commit([*b"ab", EOS, *b"cd"]).token_ids == (97, 98, EOS)
    assert commit([*b"abcd"], max_tokens=3).token_ids == (97, 98, 99)
    got = commit([*b"abXcd"], stop=("X",))
    assert (got.token_ids, got.text, got.stop_reason) == ((97, 98, 88), "ab", "X")


def test_ignore_eos_ignores_only_eos() -> None:  # S7
    got = commit([97, EOS, 98, 99], ignore_eos=True, stop_token_ids=(99,))
    assert (got.token_ids, got.finish, got.stop_reason) == ((97, EOS, 98, 99), FinishReason.STOP, 99)
    assert commit([97, EOS, 98], ignore_eos=True, max_tokens=3).finish is FinishReason.LENGTH
    assert commit([97, EOS, 98, 99], ignore_eos=True, stop=("b",)).stop_reason == "b"


def test_a_stop_token_ends_and_stays_out_of_the_text() -> None:  # S7
    got = commit([*b"ab"], stop_token_ids=(98,))
    assert (got.text, got.finish, got.stop_reason) == ("a", FinishReason.STOP, 98)


def test_max_tokens_counts_what_was_generated_before() -> None:  # S7
    assert commit([97], before=2, max_tokens=3).finish is FinishReason.LENGTH
    assert commit([97], before=1, max_tokens=3).finish is None


def test_the_models_length_ends_a_request() -> None:  # S7
    assert commit([97], prompt=8, before=1, max_model_len=10).finish is FinishReason.LENGTH
    assert commit([97], prompt=8, before=0, max_model_len=10).finish is None


def test_a_stop_string_beats_the_length_at_the_same_token() -> None:  # S7
    got = commit([*b"ab"], max_tokens=2, stop=("b",))
    assert (got.text, got.finish, got.stop_reason) == ("a", FinishReason.STOP, "b")


def test_a_stop_string_below_min_tokens_does_not_end() -> None:  # S8
    got = commit([*b"aXbXc"], stop=("X",), min_tokens=3)
    assert (got.token_ids, got.text, got.stop_reason) == (tuple(b"aXbX"), "aXb", "X")
    assert commit([*b"aX"], stop=("X",), min_tokens=2).text == "a"
    assert commit([*b"aXb"], stop=("X",), min_tokens=4).finish is None
    assert commit([*b"XY"], before=2, stop=("X",), min_tokens=3).token_ids == (88,)


def test_a_stop_string_that_ends_at_min_tokens_may_begin_before() -> None:  # S8
    got = commit([*b"aENDb"], stop=("END",), min_tokens=4)
    assert (got.token_ids, got.text, got.stop_reason) == (tuple(b"aEND"), "a", "END")
    got = commit([*b"ENDEND"], stop=("END",), min_tokens=4)
    assert (got.token_ids, got.text) == (tuple(b"ENDEND"), "END")


def test_the_length_caps_win_below_min_tokens() -> None:  # S8
    got = commit([*b"aX"], max_tokens=2, stop=("X",), min_tokens=2, prompt=2, max_model_len=3)
    assert (got.token_ids, got.text, got.finish) == ((97,), "a", FinishReason.LENGTH)
    got = commit([*b"abX"], stop=("X",), min_tokens=9, max_tokens=9, max_model_len=5)
    assert (got.text, got.finish) == ("abX", FinishReason.LENGTH)
    got = commit([*b"abXd"], stop=("X",), min_tokens=4, max_tokens=4)
    assert (got.text, got.finish) == ("abXd", FinishReason.LENGTH)


def test_an_eos_that_was_drawn_below_min_tokens_ends_all_the_same() -> None:  # S8
    got = commit([97, EOS], min_tokens=5)
    assert (got.token_ids, got.finish) == ((97, EOS), FinishReason.STOP)


def test_what_was_held_back_below_min_tokens_is_whole() -> None:  # S8
    asked = SamplingParams(stop=("END",), min_tokens=9)
    state = TextState(asked, Bytes())
    texts = [state.push(token, may_end=False)[0] for token in b"aENDxEN"]
    assert "".join(texts) + state.finish(may_end=False)[0] == "aENDxEN"


@given(
    st.lists(st.sampled_from(b"ab"), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=2, unique=True),
    st.integers(0, 12),
)
def test_min_tokens_against_a_search_of_the_whole_text(drawn: list[int], stops: list[str], least: int) -> None:  # S8
    text = bytes(drawn).decode()
    ends = [end for end in range(max(1, least), len(text) + 1) if text[:end].endswith(tuple(stops))] if stops else []
    got = commit(drawn, stop=tuple(stops), min_tokens=least, max_model_len=1000)
    if not ends:
        assert (got.token_ids, got.finish) == (tuple(drawn), None)
        return
    end = ends[0]
    stop = max((stop for stop in stops if text[:end].endswith(stop)), key=len)
    assert (got.token_ids, got.text, got.stop_reason) == (tuple(drawn[:end]), text[: end - len(stop)], stop)


def test_text_that_was_held_back_comes_with_the_end() -> None:  # S7
    assert commit([*b"abEN"], stop=("END",)).text == "ab"
    got = commit([*b"abEN"], stop=("END",), max_tokens=4)
    assert (got.text, got.finish) == ("abEN", FinishReason.LENGTH)
    assert commit([*b"a\xc3"], max_tokens=2).text == "a\ufffd"


def test_a_model_without_text_still_stops_by_tokens() -> None:
    params = SamplingParams(max_tokens=2)
    ends = Ends.of(params, num_prompt_tokens=1, eos_token_ids=frozenset(), max_model_len=100)
    got = trim([1, 2, 3], ends=ends, min_tokens=0, text=TextState(params, no_text(True)), num_output_tokens=0)
    assert (got.token_ids, got.text, got.finish) == ((1, 2), "", FinishReason.LENGTH)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first (of those the longest), searched in the whole text."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


PIECES = st.lists(st.text(alphabet="ab⚡", max_size=4), max_size=12)
STOPS = st.lists(st.text(alphabet="ab⚡", min_size=1, max_size=5), max_size=4, unique=True)


@given(pieces=PIECES, stops=STOPS)
def test_stop_strings_are_found_wherever_the_pieces_are_cut(pieces: list[str], stops: list[str]) -> None:  # S7
    search, shown, stop = StopStrings(stops), "", None
    for piece in pieces:
        text, stop = search.push(piece)
        shown += text
        if stop is not None:
            break
    else:
        shown += search.finish()
    assert (shown, stop) == naive("".join(pieces), stops)


@given(pieces=PIECES, stops=STOPS.filter(bool))
def test_no_more_is_held_back_than_could_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:  # S7
    search, shown, seen = StopStrings(stops), "", ""
    for piece in pieces:
        seen += piece
        text, stop = search.push(piece)
        shown += text
        if stop is not None:
            return
        held = seen[len(shown) :]
        assert held == "" or any(s.startswith(held) for s in stops)


@given(
    text=st.text(alphabet="abé⚡", max_size=24),
    stops=STOPS,
    chunk=st.integers(1, 7),
    max_tokens=st.integers(1, 80),
)
def test_stop_strings_across_token_borders_through_the_engine(
    text: str, stops: list[str], chunk: int, max_tokens: int
) -> None:  # S7
    engine = FakeEngine(max_num_batched_tokens=128, max_tokens_per_step=7)
    engine.executor.draw = lambda one: tuple(
        text_tokens[(done := len(one.row.token_ids) - one.row.num_prompt_tokens) : done + chunk]
    )
    text_tokens = [*text.encode(), EOS]
    got, last = engine.answer("hi", stop=tuple(stops), max_tokens=max_tokens)
    whole = text.encode()[:max_tokens].decode(errors="replace")
    assert (got, last.stop_reason) == naive(whole, stops)
    assert last.finish_reason is (
        FinishReason.STOP if last.stop_reason or max_tokens > len(text.encode()) else FinishReason.LENGTH
    )


def test_many_stop_strings_cost_the_same_per_character() -> None:
    search = StopStrings(["a" * 256 for _ in range(16)])
    steps = 0
    original = search._step

    def count(character: str) -> str | None:
        nonlocal steps
        steps += 1
        return original(character)

    search._step = count  # type: ignore[method-assign]  # counts what the search looks at
    for _ in range(100):
        assert search.push("a" * 255 + "b")[1] is None
    assert steps == 100 * 256


@pytest.mark.parametrize("piece", ["", "x"])
def test_without_stop_strings_text_goes_straight_through(piece: str) -> None:
    assert StopStrings(()).push(piece) == (piece, None)


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece-legacy"])
@given(data=st.data())
def test_a_stop_string_within_a_run_of_byte_tokens_ends_it_there(kind: str, data: st.DataObject) -> None:  # S7
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(data.draw(st.text(alphabet="the 日本語🦜\x01", min_size=1, max_size=20)))
    whole = tokenizer.decode(ids)
    start = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stop = whole[start : start + data.draw(st.integers(1, 4))]
    if not stop:
        return
    state, shown, found, count = TextState(SamplingParams(stop=(stop,)), IncrementalDetokenizer(tokenizer)), "", None, 0
    while found is None:
        piece, found = state.push(ids[count])
        shown, count = shown + piece, count + 1
    assert (shown, found) == naive(whole, [stop])
    assert stop in tokenizer.decode(ids[:count])
    assert stop not in tokenizer.decode(ids[: count - 1])


def test_what_a_broken_run_of_byte_tokens_reads_as_can_stop_too() -> None:  # S7
    tokenizer = KINDS["sentencepiece"]()
    state = TextState(SamplingParams(stop=("\ufffd\ufffd\ufffd\ufffd",)), IncrementalDetokenizer(tokenizer))
    first = tokenizer.encode("\x01")[-1] - 1  # the byte tokens stand in a row
    got = [state.push(first + byte) for byte in (0x41, 0xE6, 0x97, 0x41)]
    assert got == [("", None), ("", None), ("", None), ("", "\ufffd" * 4)]


def test_looking_ahead_changes_nothing() -> None:
    tokenizer = KINDS["sentencepiece"]()
    ids = tokenizer.encode("the 日本語🦜 and 語")
    state = TextState(SamplingParams(stop=("語語",)), IncrementalDetokenizer(tokenizer))
    pieces = [state.push(i) for i in ids]
    assert "".join(text for text, _ in [*pieces, state.finish()]) == tokenizer.decode(ids)

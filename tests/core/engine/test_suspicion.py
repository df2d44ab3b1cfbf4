"""Who is convicted of killing workers, after how many deaths, and who is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.suspicion import Suspicion


def test_one_that_always_kills_is_convicted_at_the_third_death() -> None:  # R3
    suspicion = Suspicion()
    assert suspicion.died(["a", "b", "c"]) is None
    assert suspicion.alone is None
    assert suspicion.died(["b", "c", "d"]) is None
    assert suspicion.alone == "b"
    suspicion.committed(["b"])
    assert suspicion.alone == "c"
    assert suspicion.died(["c"]) == "c"
    assert suspicion.alone is None


def test_a_token_acquits() -> None:
    suspicion = Suspicion()
    suspicion.died(["a", "b"])
    suspicion.committed(["a", "b"])
    suspicion.died(["a", "b"])
    assert suspicion.alone is None


def test_accusations_stand_until_a_token_comes() -> None:
    suspicion = Suspicion()
    suspicion.died(["a"])
    suspicion.died(["b"])
    assert suspicion.alone is None
    suspicion.died(["a", "c"])
    assert (suspicion.alone, suspicion.known) == ("a", ("a", "b", "c"))


def test_of_two_that_kill_the_second_is_found_with_fewer_deaths() -> None:
    suspicion = Suspicion()
    deaths = [(["a", "b", "c"], None), (["a", "b", "c"], None), (["a"], "a"), (["b", "c"], None), (["b"], "b")]
    assert [suspicion.died(present) for present, _ in deaths] == [convict for _, convict in deaths]
    assert (suspicion.alone, suspicion.known) == (None, ("c",))


def test_a_death_before_the_suspect_ran_convicts_nobody() -> None:
    suspicion = Suspicion()
    suspicion.died(["a", "b"])
    suspicion.died(["a"])
    assert suspicion.alone == "a"
    assert suspicion.died([]) is None
    assert suspicion.alone == "a"


def test_a_suspect_that_is_cancelled_is_forgotten() -> None:
    suspicion = Suspicion()
    suspicion.died(["a", "b"])
    suspicion.died(["a", "b"])
    suspicion.ended("a")
    assert suspicion.alone == "b"


@given(
    st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=30),
    st.sampled_from("abcdefgh"),
)
def test_whoever_kills_whenever_it_runs_is_found_and_nobody_else(batches: list[set[str]], poison: str) -> None:
    suspicion, deaths, convicted = Suspicion(), 0, None
    for batch in batches:
        for _ in range(20):  # each batch is run again until it gets through
            alone = suspicion.alone
            running = sorted(batch) if alone is None else [alone]
            if poison not in running:
                suspicion.committed(running)
                if alone is None:
                    break
                continue
            deaths += 1
            convicted = suspicion.died(running)
            if convicted is not None:
                break
        if convicted is not None:
            break
    assert convicted in (None, poison)
    assert deaths <= 3
    assert (convicted is None) is (deaths < 3)
    assert (deaths > 0) is any(poison in batch for batch in batches)

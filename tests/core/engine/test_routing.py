"""The router by its properties: nobody starves, nobody is overloaded, and a prompt goes where its beginning is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.admission.admit import Ask
from enginebay.engine.replicas.routing import Load, Router, choose, cost_of
from enginebay.messages import SamplingParams

BLOCK = 4


def ask(name: str = "a", *, prompt: int = 10, answer: int = 6, start: int = 0, n: int = 1, salt: str = "") -> Ask:
    """A request whose first block is ``start`` over and over."""
    ids = (*(start,) * min(BLOCK, prompt), *range(prompt - min(BLOCK, prompt)))
    return Ask(
        request_id=name,
        prompt_token_ids=ids,
        params=SamplingParams(max_tokens=answer, n=n),
        cache_salt=salt,
    )


def taken(router: Router, one: Ask) -> tuple[int, int]:
    place = router.take(one)
    assert place is not None
    return place


def test_the_cost_is_the_most_that_a_request_comes_to() -> None:
    assert cost_of(ask(prompt=10, answer=6), None) == 16
    assert cost_of(ask(prompt=10, answer=6, n=3), None) == 28
    assert cost_of(ask(prompt=10, answer=6000), 64) == 64
    assert cost_of(ask(prompt=10, answer=6000), 8) == 10


def test_the_least_loaded_of_the_living() -> None:
    loads = [Load(tokens=5), None, Load(tokens=3), Load(tokens=9)]
    assert choose(loads, preferred=None, slack=0) == 2
    assert choose(loads, preferred=1, slack=100) == 2
    assert choose(loads, preferred=3, slack=5) == 2
    assert choose(loads, preferred=3, slack=6) == 3
    assert choose([None, None], preferred=0, slack=9) is None
    assert choose([Load(chosen=7), Load(chosen=3)], preferred=None, slack=0) == 1


def test_one_after_the_other_takes_turns() -> None:
    """Requests that come when all groups idle do not all go to the first."""
    router = Router(3, prefix=0, slack=100)
    groups = []
    for _ in range(9):
        group, cost = taken(router, ask())
        groups.append(group)
        router.give_back(group, cost)
    assert groups == [0, 1, 2] * 3


def test_a_prompt_goes_where_its_beginning_is() -> None:
    router = Router(2, prefix=BLOCK, slack=100)
    first = {start: taken(router, ask(start=start))[0] for start in (1, 2)}
    assert sorted(first.values()) == [0, 1]
    for start in (2, 1, 1, 2):
        assert taken(router, ask(start=start, prompt=20))[0] == first[start]


def test_the_beginning_counts_with_its_salt_and_only_when_it_is_a_whole_block() -> None:
    router = Router(2, prefix=BLOCK, slack=100)
    assert taken(router, ask(start=1))[0] == 0
    assert taken(router, ask(start=1, salt="other"))[0] == 1
    assert taken(router, ask(start=1))[0] == 0
    short = Router(2, prefix=BLOCK, slack=100)
    assert [taken(short, ask(start=1, prompt=BLOCK))[0] for _ in range(4)] == [0, 1, 0, 1]


def test_a_beginning_is_not_worth_more_than_the_slack() -> None:
    router = Router(2, prefix=BLOCK, slack=20)
    groups = [taken(router, ask(start=1))[0] for _ in range(12)]
    assert groups[:3] == [0, 0, 1]  # 0, then 16 more than the other, then 32
    assert groups.count(0) == groups.count(1) == 6


def test_a_lost_group_gets_nothing_and_its_requests_count_no_more() -> None:
    router = Router(2, prefix=BLOCK, slack=1000)
    group, cost = taken(router, ask(start=1))
    router.lose(group)
    assert router.loads()[group] is None
    router.give_back(group, cost)
    assert {taken(router, ask(start=1))[0] for _ in range(5)} == {1 - group}
    router.lose(1 - group)
    assert router.take(ask()) is None
    assert router.add() == 2
    assert taken(router, ask())[0] == 2


def test_one_that_has_been_elsewhere_goes_to_who_has_least_to_do_and_is_able() -> None:
    router = Router(4, prefix=0, slack=0)
    for group, cost in enumerate((5, 2, 3, 1)):
        router.put(group, cost)
    assert router.other(lambda group: group != 3) == 1
    router.rest(1, True, "a reason")
    router.rest(1, True, "another")
    router.rest(1, False, "a reason")
    assert router.other(lambda group: group != 3) == 2
    assert router.other(lambda group: group == 1) == 1, "it rests, and there is no other"
    router.lose(2)
    router.put(2, 7)  # it was chosen before it was lost
    router.give_back(2, 7)
    assert router.other(lambda group: group == 2) is None
    assert router.loads() == (5, 2, None, 1)


REQUESTS = st.lists(
    st.tuples(st.integers(1, 400), st.integers(1, 200), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=80
)
"""(prompt, answer, beginning, which of those that run ends before it comes)"""


@given(st.integers(1, 5), st.integers(0, 300), REQUESTS)
def test_no_group_gets_a_request_that_another_is_freer_for(
    groups: int, slack: int, requests: list[tuple[int, ...]]
) -> None:
    """The bound of balance: whoever takes a request had at most ``slack`` tokens more to do than the freest."""
    router = Router(groups, prefix=BLOCK, slack=slack)
    running: list[tuple[int, int]] = []
    for prompt, answer, start, ends in requests:
        if ends < len(running):
            router.give_back(*running.pop(ends))
        before = [load for load in router.loads() if load is not None]
        group, cost = taken(router, ask(prompt=prompt, answer=answer, start=start))
        running.append((group, cost))
        assert before[group] <= min(before) + slack
        assert sum(load or 0 for load in router.loads()) == sum(cost for _, cost in running)
    for place in running:
        router.give_back(*place)
    assert router.loads() == (0,) * groups


@given(st.integers(2, 5), st.integers(0, 300), REQUESTS)
def test_no_group_starves(groups: int, slack: int, requests: list[tuple[int, ...]]) -> None:
    """With requests that stay, the loads differ by no more than the slack and the largest of them."""
    router = Router(groups, prefix=BLOCK, slack=slack)
    largest = 0
    for prompt, answer, start, _ in requests:
        largest = max(largest, taken(router, ask(prompt=prompt, answer=answer, start=start))[1])
    loads = [load for load in router.loads() if load is not None]
    assert max(loads) - min(loads) <= slack + largest


@given(REQUESTS)
def test_the_same_requests_go_the_same_ways(requests: list[tuple[int, ...]]) -> None:
    def ways() -> list[tuple[int, int]]:
        router = Router(3, prefix=BLOCK, slack=50)
        return [taken(router, ask(prompt=one[0], answer=one[1], start=one[2])) for one in requests]

    assert ways() == ways()

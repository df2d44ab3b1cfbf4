"""``RequestTable`` against a scheduler that knows everything: what the differences add up to is what it meant."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import (
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    ResumedRequest,
    RunningRequest,
    SamplingParams,
    SchedulerOutput,
    TokenLogprob,
)
from enginebay.worker import RequestTable, ScheduledRow

BLOCK = 4
GROUPS = 2
PARAMS = SamplingParams(temperature=0.5)


@dataclass
class Full:
    """A request as the scheduler knows it."""

    token_ids: list[int]
    prompt: int
    computed: int = 0
    blocks: list[list[int]] = field(default_factory=lambda: [[] for _ in range(GROUPS)])
    state: str = "waiting"
    owed: bool = False
    """Whether it had to draw in its last step, and no token came."""
    foreign: list[int] = field(default_factory=list)
    """Committed tokens that this runner did not draw, to be told with the next step."""


class Naive:
    """Plays the scheduler, keeps whole requests, and compares every row with them."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.table = RequestTable()
        self.requests: dict[str, Full] = {}
        self.finished: list[str] = []
        self.preempted: list[str] = []
        self.step, self.generation, self.made, self.next_block = 0, 0, 0, 0

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def add(self) -> None:
        length = self.draw(1, 20)
        request = Full(token_ids=[self.draw(0, 99) for _ in range(length)], prompt=length)
        request.computed = self.draw(0, (length - 1) // BLOCK) * BLOCK  # a prefix hit
        self.requests[f"r{self.made}"] = request
        self.made += 1

    def pick(self, *states: str) -> str | None:
        ids = [i for i, r in self.requests.items() if r.state in states]
        return ids[self.draw(0, len(ids) - 1)] if ids else None

    def abort(self) -> None:
        request_id = self.pick("running", "parked", "waiting")
        if request_id is not None and self.requests.pop(request_id).state != "waiting":
            self.finished.append(request_id)

    def preempt(self) -> None:
        request_id = self.pick("running")
        if request_id is not None:
            request = self.requests[request_id]
            request.state, request.foreign = "parked", []
            request.blocks = [[] for _ in range(GROUPS)]
            request.computed = 0
            self.preempted.append(request_id)

    def restart(self) -> None:
        """A void: a new generation, in which everything is new again."""
        self.generation += 1
        self.finished, self.preempted = [], []
        for request in self.requests.values():
            request.state, request.computed, request.foreign = "waiting", 0, []
            request.blocks = [[] for _ in range(GROUPS)]

    def tell(self) -> None:
        """Another runner committed tokens for a running request that had to draw here, and did not."""
        owed = [one for one, request in self.requests.items() if request.state == "running" and request.owed]
        if owed:
            request = self.requests[owed[self.draw(0, len(owed) - 1)]]
            told = [self.draw(0, 99) for _ in range(self.draw(1, 3))]
            request.foreign += told
            request.token_ids += told

    def run(self, *, fail: bool = False) -> None:
        new, running, resumed, counts = [], [], [], {}
        ids = self.data.draw(st.permutations(list(self.requests)))
        for request_id in ids[: self.draw(0, len(ids))]:
            request = self.requests[request_id]
            left = len(request.token_ids) - request.computed
            if left < 1:
                continue
            count = self.draw(1, left)
            known = len(request.blocks[0])
            needed = -(-(request.computed + count) // BLOCK)
            more = [[self.take() for _ in range(known, needed)] for _ in range(GROUPS)]
            for blocks, extra in zip(request.blocks, more, strict=True):
                blocks += extra
            whole = tuple(tuple(blocks) for blocks in request.blocks)
            tokens, computed = tuple(request.token_ids), request.computed
            if request.state == "waiting":
                new.append(
                    NewRequest(
                        request_id=request_id,
                        token_ids=tokens,
                        num_prompt_tokens=request.prompt,
                        params=PARAMS,
                        seed=len(request_id),
                        choice=1,
                        block_ids=whole,
                        num_computed_tokens=computed,
                    )
                )
            elif request.state == "parked":
                resumed.append(
                    ResumedRequest(
                        request_id=request_id, token_ids=tokens, block_ids=whole, num_computed_tokens=computed
                    )
                )
            else:
                running.append(
                    RunningRequest(
                        request_id=request_id,
                        num_computed_tokens=computed,
                        new_block_ids=tuple(tuple(extra) for extra in more) if any(more) else (),
                        new_token_ids=tuple(request.foreign),
                    )
                )
                request.foreign = []
            request.state = "running"
            counts[request_id] = count
        output = SchedulerOutput(
            step=self.step,
            generation=self.generation,
            new=tuple(new),
            running=tuple(running),
            resumed=tuple(resumed),
            finished=tuple(self.finished),
            preempted=tuple(self.preempted),
            num_scheduled_tokens=counts,
        )
        self.step += 1
        self.finished, self.preempted = [], []
        batch = self.table.begin_step(output)
        self.compare(batch, counts)
        if fail:
            return
        sampled = self.sample(batch)
        result = self.table.finish_step(sampled)
        assert result.request_ids == tuple(counts)
        assert result.sampled_token_ids == tuple(tuple(sampled.get(request_id, ())) for request_id in counts)
        for request_id, count in counts.items():
            request = self.requests[request_id]
            request.computed += count
            drawn = sampled.get(request_id, [])
            request.owed = request.computed == len(request.token_ids) and not drawn
            request.token_ids += drawn
            self.compare_row(request_id)

    def take(self) -> int:
        self.next_block += 1
        return self.next_block

    def sample(self, batch: list[ScheduledRow]) -> dict[str, list[int]]:
        """None, one or several tokens for those that reached the end."""
        return {one.row.request_id: [self.draw(0, 99) for _ in range(self.draw(0, 3))] for one in batch if one.samples}

    def compare(self, batch: list[ScheduledRow], counts: dict[str, int]) -> None:
        assert [one.row.request_id for one in batch] == list(counts)
        for one in batch:
            request = self.requests[one.row.request_id]
            assert one.num_tokens == counts[one.row.request_id]
            assert one.samples == (request.computed + one.num_tokens == len(request.token_ids))
            self.compare_row(one.row.request_id)
        held = {i for i, r in self.requests.items() if r.state in ("running", "parked")}
        assert {i for i in (*self.requests, "nobody") if i in self.table} == held
        assert len(self.table) == len(held)

    def compare_row(self, request_id: str) -> None:
        row, request = self.table.get(request_id), self.requests[request_id]
        assert row is not None
        assert row.token_ids == request.token_ids
        assert row.block_ids == request.blocks
        assert row.num_computed_tokens == request.computed
        assert (row.num_prompt_tokens, row.params, row.seed, row.choice) == (
            request.prompt,
            PARAMS,
            len(request_id),
            1,
        )


@settings(max_examples=120)
@given(st.data())
def test_differences_add_up_to_what_the_scheduler_meant(data: st.DataObject) -> None:  # TABLE
    naive = Naive(data)
    actions = {
        "add": naive.add,
        "run": naive.run,
        "abort": naive.abort,
        "preempt": naive.preempt,
        "tell": naive.tell,
        "restart": naive.restart,
    }
    naive.add()
    for name in data.draw(st.lists(st.sampled_from(["add", "add", "run", "run", "run", *actions]), max_size=25)):
        actions[name]()


def new(request_id: str = "a", tokens: tuple[int, ...] = (1, 2, 3), computed: int = 0) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        params=PARAMS,
        seed=0,
        block_ids=((0,),),
        num_computed_tokens=computed,
    )


def test_a_failed_step_is_forgotten_by_the_next_generation() -> None:  # X3
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=0, new=(new(),), num_scheduled_tokens={"a": 3}))
    # the runner raised here; the core voids the step and sends everything anew
    (row,) = table.begin_step(SchedulerOutput(step=1, generation=1, new=(new(),), num_scheduled_tokens={"a": 3}))
    assert row.samples
    assert table.finish_step({"a": [7]}) == ModelRunnerOutput(request_ids=("a",), sampled_token_ids=((7,),))


def test_a_fault_is_told_for_its_request_alone() -> None:
    table = RequestTable()
    step = SchedulerOutput(step=0, new=(new("a"), new("b")), num_scheduled_tokens={"a": 3, "b": 3})
    table.begin_step(step)
    result = table.finish_step({"a": [5], "b": [6]}, {"a": "logits are NaN"})
    assert result == ModelRunnerOutput(
        request_ids=("a", "b"), sampled_token_ids=((), (6,)), faults={"a": "logits are NaN"}
    )
    row = table.get("a")
    assert row is not None
    assert row.token_ids == [1, 2, 3]


def test_preempted_and_finished_in_one_step() -> None:
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=0, new=(new(),), num_scheduled_tokens={"a": 3}))
    table.finish_step({"a": [4]})
    assert table.begin_step(SchedulerOutput(step=1, preempted=("a",), finished=("a", "never seen"))) == []
    assert "a" not in table


def test_an_id_may_be_used_again_after_its_end() -> None:
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=0, new=(new(),), num_scheduled_tokens={"a": 3}))
    table.finish_step({"a": [4]})
    again = SchedulerOutput(step=1, finished=("a",), new=(new(tokens=(9,)),), num_scheduled_tokens={"a": 1})
    assert table.begin_step(again)[0].row.token_ids == [9]


RUN = RunningRequest(request_id="a", num_computed_tokens=3)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"new": (new(),), "num_scheduled_tokens": {"a": 1}}, "is announced as new, and the runner holds it already"),
        (
            {"running": (RunningRequest(request_id="b", num_computed_tokens=0),)},
            "is listed as running, and the runner ",
        ),
        ({"resumed": (ResumedRequest(request_id="b", token_ids=(), block_ids=(), num_computed_tokens=0),)}, "is liste"),
        ({"preempted": ("b",)}, "is listed as preempted, and the runner does not hold it"),
        ({"preempted": ("a",), "running": (RUN,)}, "is listed as running, and was preempted and not resumed"),
        ({"num_scheduled_tokens": {"a": 1}}, "has tokens scheduled and is in none of new, running and resumed"),
        ({"running": (RUN,)}, "is in the step's lists but has no tokens scheduled"),
        (
            {"running": (RUN,), "num_scheduled_tokens": {"a": 2}},
            "is to compute 2 tokens from 3 on, and 4 tokens are known",
        ),
        (
            {"running": (RUN,), "num_scheduled_tokens": {"a": 0}},
            "is to compute 0 tokens from 3 on, and 4 tokens are known",
        ),
    ],
)
def test_a_schedule_that_contradicts_itself_is_named(step: dict[str, object], message: str) -> None:
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=0, new=(new(),), num_scheduled_tokens={"a": 3}))
    table.finish_step({"a": [4]})
    with pytest.raises(ValueError, match=r"^step 1 of generation 0: request '[ab]' ") as caught:
        table.begin_step(SchedulerOutput(step=1, **step))  # type: ignore[arg-type]  # the table's own fields
    assert message in str(caught.value)


def test_answers_that_do_not_belong_to_the_step_are_named() -> None:
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=4, new=(new(),), num_scheduled_tokens={"a": 2}))
    with pytest.raises(ValueError, match=r"^step 4 of generation 0: request 'z' got an answer and is not part"):
        table.finish_step({"z": [1]})
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=4, new=(new(),), num_scheduled_tokens={"a": 2}))
    with pytest.raises(ValueError, match="request 'a' drew 1 tokens in the middle of its known tokens"):
        table.finish_step({"a": [1]})


ENTRY = TokenLogprob(token_id=5, logprob=-0.5, rank=1)


def test_log_probabilities_are_told_but_not_of_a_fault() -> None:
    table = RequestTable()
    step = SchedulerOutput(step=0, new=(new("a"), new("b")), num_scheduled_tokens={"a": 3, "b": 3})
    table.begin_step(step)
    prompt = PromptLogprobs(start=1, entries=(ENTRY, ENTRY))
    result = table.finish_step(
        {"a": [5], "b": [5]},
        {"a": "logits are NaN"},
        logprobs={"a": [ENTRY], "b": [ENTRY]},
        prompt_logprobs={"a": prompt, "b": prompt},
    )
    assert result.logprobs == {"b": (ENTRY,)}
    assert result.prompt_logprobs == {"b": prompt}


@pytest.mark.parametrize("tokens", [[], [5, 6]])
def test_as_many_log_probabilities_as_tokens(tokens: list[int]) -> None:
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=4, new=(new(),), num_scheduled_tokens={"a": 3}))
    message = f"^step 4 of generation 0: request 'a' got 1 log-probabilities for {len(tokens)} tokens$"
    with pytest.raises(ValueError, match=message):
        table.finish_step({"a": tokens}, logprobs={"a": [ENTRY]})


@pytest.mark.parametrize("what", ["logprobs", "prompt_logprobs"])
def test_log_probabilities_of_a_stranger_are_named(what: str) -> None:
    table = RequestTable()
    table.begin_step(SchedulerOutput(step=4, new=(new(),), num_scheduled_tokens={"a": 3}))
    told = {"z": [ENTRY] if what == "logprobs" else PromptLogprobs(start=1)}
    with pytest.raises(ValueError, match="request 'z' got an answer and is not part of the step"):
        table.finish_step({}, **{what: told})  # type: ignore[arg-type]  # the method's own parameters

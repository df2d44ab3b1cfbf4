"""Requests that run decide what may be exchanged: what one of them needs and would not get is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.engine.admission.admit import Ask, validate
from enginebay.errors import CapabilityError, InvalidRequest, RequestTooLong
from enginebay.messages import StructuredOutput, Swap
from support.fake_dist import FakeSite
from support.fake_engines import Installed
from support.swaps import Driven

Make = Callable[..., Driven]

BEFORE = "could not go on: runner 'plain' 1.0 does not serve"
ONLY = "; it serves: greedy and temperature only"


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"seed": 4}, "seed"),
        ({"n": 2, "temperature": 1.0}, "n"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"structured": StructuredOutput(choice=("ab", "cd"))}, "structured"),
    ],
)
@pytest.mark.parametrize("num_steps", [0, 2])
def test_a_wish_that_the_new_runner_does_not_serve(
    make: Make, wish: dict[str, Any], field: str, num_steps: int
) -> None:
    engine = make("cache.memory_bytes=262144")
    engine.add("a")
    engine.add("b", **wish)
    for _ in range(num_steps):
        engine.step()
    name = "b#0" if "n" in wish else "b"
    with pytest.raises(CapabilityError) as caught:
        engine.do(Swap(runner="plain"))
    assert str(caught.value) == f"request '{name}', which runs, {BEFORE} {field}{ONLY}"
    assert engine.core.in_force["runner"] == "fake"
    engine.core.abort(["b"])
    engine.do(Swap(runner="plain"))
    assert engine.core.in_force["runner"] == "plain"
    engine.run()
    with pytest.raises(InvalidRequest, match=f"runner 'plain' 1.0 does not serve {field}"):
        engine.add("c", **wish)


POLICIES = {
    "def key(self, request): raise ValueError('x')": "key() raised ValueError: x",
    "def key(self, request): return 3": "key() returned 3 for request 'a': a tuple is expected",
    "window = 4\n    def group(self, request): return 'a'": "it has a window of 4 and groups",
}


@pytest.mark.parametrize("workers", ["the same workers", "other workers", "other workers, exclusive"])
@pytest.mark.parametrize(("body", "said"), POLICIES.items())
def test_a_policy_that_fails_before_it_rules_ends_nothing_and_says_so(
    make: Make, site: FakeSite, body: str, said: str, workers: str
) -> None:
    """Its error is that of one that runs, with whose failure the engine ends: this engine goes on."""
    site.plugin(
        "schedulers",
        "bad",
        f"class Bad(Policy):\n    def key(self, request): return ()\n    {body}\n\n"
        "@hookimpl\ndef enginebay_register_schedulers():\n    return [SchedulerPlugin(name='bad', factory=Bad)]\n",
    )
    engine = make("cache.memory_bytes=262144", "recovery.max_restarts=0")
    for name in ("a", "b"):
        engine.add(name)
    engine.step()
    runner = "" if workers == "the same workers" else "plain"
    with pytest.raises(CapabilityError) as caught:
        engine.do(Swap(scheduler="bad", runner=runner, exclusive="exclusive" in workers))
    text = str(caught.value)
    assert text.startswith(f"policy bad_pkg_plugin.Bad: {said}")
    assert ": correct it, or name another scheduler" in text
    assert "stops" not in text
    assert engine.core.death() is None
    engine.run()
    assert [len(engine.tokens[f"{one}/0"]) for one in ("a", "b")] == [40, 40]


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_request_that_would_not_fit_into_the_new_cache(make: Make, exclusive: bool) -> None:
    engine = make("cache.memory_bytes=262144", "recovery.max_restarts=0")
    engine.add("short", max_tokens=40)
    engine.add("long", max_tokens=100)
    engine.step()
    with pytest.raises(CapabilityError) as caught:
        engine.do(Swap(runner="plain", exclusive=exclusive))
    assert str(caught.value) == (
        "request 'long', which runs, could not go on: it may come to 102 tokens, and a request could have 64; what was "
        "in force before goes on"
    )
    assert engine.core.in_force["runner"] == "fake"
    while "long/0" not in engine.last:
        engine.step()
    engine.add("another", max_tokens=30)
    engine.step()
    engine.do(Swap(runner="plain", exclusive=exclusive))
    assert engine.core.in_force["kv_blocks"] == "4 (fixed by the runner)"
    assert engine.core.limits.max_model_len == 64
    engine.run()
    assert [len(engine.tokens[f"{one}/0"]) for one in ("short", "long", "another")] == [40, 100, 30]
    with pytest.raises(RequestTooLong):
        engine.add("long again", "x" * 64)


def test_a_request_that_was_looked_at_before_the_exchange_is_looked_at_again(make: Make) -> None:
    engine = make("cache.memory_bytes=262144")
    asks = [
        Ask(request_id="a", prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=5)),
        Ask(request_id="b", prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=5, logprobs=1)),
        Ask(request_id="c", prompt_token_ids=(1,) * 70, params=SamplingParams(max_tokens=5)),
    ]
    looked_at = [validate(one, engine.core.limits) for one in asks]
    engine.do(Swap(runner="plain"))
    engine.core.add_request(looked_at[0], validated=True)
    with pytest.raises(InvalidRequest, match=r"^runner 'plain' 1.0 does not serve logprobs"):
        engine.core.add_request(looked_at[1], validated=True)
    with pytest.raises(RequestTooLong):
        engine.core.add_request(looked_at[2], validated=True)
    engine.run()
    assert sorted(engine.last) == ["a/0"]


def test_a_front_end_sees_what_is_in_force_now(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        assert llm.swap(scheduler="priority", sets=["runner.options.announce=1"]) == {
            "scheduler": "priority",
            "generation": "1",
        }
        assert llm.in_force["scheduler"] == "priority"
        assert llm.swap(scheduler="priority") == {}
        llm.restart_workers()
        assert llm.status()["generation"] == "2"
        assert llm.generate("say:yes", SamplingParams(max_tokens=9))[0].text == "yes"

"""Whether steps overlap, how deep, and what ``check`` says of it; and what speculation needs."""

from __future__ import annotations

import pytest

from enginebay.config import load
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import CapabilityError, PluginBroken
from enginebay.messages import ModelInfo
from support.fake_dist import FakeSite

MODEL = ModelInfo(
    path="/models/tiny",
    name="tiny",
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=100,
    max_model_len=8192,
    dtype="bfloat16",
)

POLICY = """
class Arrival(Policy):
    def key(self, request):
        return (request.arrival_number,)
"""

WHOLE = """
class Whole(Scheduler):
    add_request = finish_requests = schedule = update_from_output = None
    preempt_all = has_requests = make_stats = None
"""


def scheduler(site: FakeSite, name: str, source: str, made: str, capabilities: str = "") -> None:
    body = f"""
{source}
@hookimpl
def enginebay_register_schedulers():
    capabilities = SchedulerCapabilities({capabilities})
    return [SchedulerPlugin(name={name!r}, factory=lambda context: {made}, capabilities=capabilities)]
"""
    site.plugin("schedulers", name, body)


@pytest.fixture
def parts(site: FakeSite) -> FakeSite:
    site.executor("uni", "max_in_flight=8, max_world_size=1")
    site.executor("mp", "max_in_flight=8")
    site.executor("pair", "max_in_flight=2")
    site.executor("slow", "max_in_flight=1")
    site.runner("v1", "tensor_parallel=True, pipeline_parallel=True, max_draft_tokens=6")
    scheduler(site, "fcfs", POLICY, "Arrival(context)")
    scheduler(site, "whole", WHOLE, "Whole(context)")
    scheduler(site, "ready", WHOLE, "Whole(context)", "overlap_safe=True")
    scheduler(site, "broken", "", "context.nothing")
    return site


def planned(site: FakeSite, *sets: str) -> Plan:
    return plan(load(None, sets=["status.sinks=[]", *sets], environ={}), site.host(), model=MODEL)


def overlap(made: Plan) -> tuple[int, str, str]:
    (told,) = [one for one in made.in_force if one.name == "overlap"]
    return made.depth, told.value, told.why


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("", (2, "on", "2 steps in flight; default")),
        ("scheduler.overlap=true", (2, "on", "2 steps in flight; --set")),
        ("scheduler.overlap=false", (1, "off", "--set")),
        ("scheduler.use=ready", (2, "on", "2 steps in flight; default")),
        ("scheduler.use=whole", (1, "off", "scheduler 'whole' is a whole one, and does not declare overlap_safe")),
        ("executor.use=slow", (1, "off", "executor 'slow' takes one step at a time")),
        ("executor.use=mp parallel.tensor_parallel_size=2", (2, "on", "2 steps in flight; default")),
        (
            "executor.use=mp parallel.pipeline_parallel_size=3",
            (4, "on", "4 steps in flight; default; 3 pipeline stages, and executor 'mp' takes 8 steps"),
        ),
        (
            "executor.use=pair parallel.pipeline_parallel_size=3",
            (2, "on", "2 steps in flight; default; 3 pipeline stages, and executor 'pair' takes 2 steps"),
        ),
        ("speculation.use=ngram", (2, "on", "2 steps in flight; default")),
    ],
)
def test_how_deep(parts: FakeSite, sets: str, expected: tuple[int, str, str]) -> None:  # P8, P10
    assert overlap(planned(parts, *sets.split())) == expected


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            "scheduler.overlap=true scheduler.use=whole",
            (
                "[scheduler] overlap = true (--set): scheduler 'whole' is a whole one, and does not declare "
                "overlap_safe: leave it out, or set it to false."
            ),
        ),
        (
            "speculation.use=ngram speculation.max_tokens=7",
            (
                "[speculation] max_tokens is 7, and runner 'v1' verifies at most 6 proposals of a request in a step: "
                "lower max_tokens to 6, or choose another."
            ),
        ),
    ],
)
def test_what_cannot_be_is_refused(parts: FakeSite, sets: str, message: str) -> None:  # P8
    with pytest.raises(CapabilityError) as caught:
        planned(parts, *sets.split())
    assert str(caught.value) == message


def test_a_scheduler_that_cannot_be_made_is_found_before_anything_starts(parts: FakeSite) -> None:
    with pytest.raises(PluginBroken, match="scheduler 'broken' could not be made: its factory raised AttributeError"):
        planned(parts, "scheduler.use=broken")


def test_schedulers_see_how_many_tokens_a_step_may_draw(parts: FakeSite) -> None:
    made = planned(parts, "speculation.use=ngram", "speculation.max_tokens=5")
    assert made.constraints.max_tokens_per_step == 6
    assert made.runner.plugin.capabilities.constraints.max_tokens_per_step == 1
    told = {one.name: (one.value, one.why) for one in made.in_force}
    assert told["speculation"] == ("ngram, at most 5 tokens", "--set")
    assert planned(parts).constraints.max_tokens_per_step == 1

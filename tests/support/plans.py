"""Plans of the packages that a test has installed, and what is said of them."""

from __future__ import annotations

import pytest

from enginebay.config import load
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import CapabilityError
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


def make_plan(site: FakeSite, *sets: str, model: ModelInfo = MODEL) -> Plan:
    """Without status sinks unless ``sets`` name some: of these, a site has none."""
    return plan(load(None, sets=["status.sinks=[]", *sets], environ={}), site.host(), model=model)


def refused(site: FakeSite, *sets: str, model: ModelInfo = MODEL) -> str:
    with pytest.raises(CapabilityError) as caught:
        make_plan(site, *sets, model=model)
    return str(caught.value)


def in_force(planned: Plan) -> dict[str, tuple[str, str]]:
    return {one.name: (one.value, one.why) for one in planned.in_force}

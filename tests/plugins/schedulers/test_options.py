"""What ``[scheduler]`` sets is in force under every policy: kept when set, and broken by the same load when not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginebay.cli import group
from enginebay.messages import SchedulerOutput
from enginebay.testing import CoreLoop, make_limits, make_request
from support.policies import BUILT_IN, EVERY, policy_loop

PROMPT, MOST, BLOCKS = 18, 14, 16


def steps(loop: CoreLoop) -> list[SchedulerOutput]:
    return [msgspec.msgpack.decode(step, type=SchedulerOutput) for step in loop.schedules]


def no_prompt_is_split(loop: CoreLoop, free: list[int]) -> bool:
    return all(step.num_scheduled_tokens[new.request_id] == PROMPT for step in steps(loop) for new in step.new)


def no_chunk_is_long_while_others_wait(loop: CoreLoop, free: list[int]) -> bool:
    return all(step.num_scheduled_tokens[new.request_id] <= 4 for step in steps(loop)[:6] for new in step.new)


def admission_leaves_blocks_free(loop: CoreLoop, free: list[int]) -> bool:
    beside_others = [at for at, step in enumerate(steps(loop)) if step.new and len(step.num_scheduled_tokens) > 1]
    assert beside_others
    return all(free[at] >= int(0.4 * BLOCKS) for at in beside_others)


def the_whole_prompt_has_blocks(loop: CoreLoop, free: list[int]) -> bool:
    return all(len(new.block_ids[0]) * 4 >= PROMPT for step in steps(loop) for new in step.new)


def nobody_is_preempted(loop: CoreLoop, free: list[int]) -> bool:
    return loop.preemptions == 0


OPTIONS: dict[str, tuple[Any, Callable[[CoreLoop, list[int]], bool]]] = {
    "chunked_prefill": (False, no_prompt_is_split),
    "long_prefill_token_threshold": (4, no_chunk_is_long_while_others_wait),
    "watermark": (0.4, admission_leaves_blocks_free),
    "reserve_whole_prompt": (True, the_whole_prompt_has_blocks),
    "no_evict": (True, nobody_is_preempted),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", EVERY)
def test_an_option_is_in_force(name: str, option: str) -> None:
    value, is_kept = OPTIONS[option]
    for settings, expected in (({option: value}, True), ({}, False)):
        loop = policy_loop(
            name,
            num_blocks=BLOCKS,
            limits=make_limits(max_num_batched_tokens=32, max_num_seqs=8, max_model_len=64, **settings),
        )
        loop.add(
            *(
                make_request(n, PROMPT, max_tokens=MOST, priority=-n, tenant=f"{n % 2}", deadline=99.0 - n)
                for n in range(8)
            )
        )
        free = []
        while loop.scheduler.has_requests():
            told = len(loop.schedules)
            loop.step()
            free += [loop.cache.num_free_blocks] * (len(loop.schedules) - told)
        loop.run()
        assert is_kept(loop, free) is expected, f"{option} with {settings} under {name}"


@pytest.mark.parametrize("name", BUILT_IN)
def test_check_shows_the_values_and_where_they_come_from(
    name: str, smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # P8
    weights = ["--set", "scheduler.options.weights={a=2}"] if name == "fair" else []
    sets = ["--set", f"scheduler.use={name}", "--set", "scheduler.watermark=0.05", "--set", f"model.path={smollm2}"]
    group.main(["check", "--json", *sets, *weights], standalone_mode=False)
    shown = {one["name"]: (one["value"], one["why"]) for one in json.loads(capsys.readouterr().out)["in_force"]}
    assert shown["scheduler"][0] == name
    assert shown["watermark"] == ("5.0% of the KV blocks", "--set")
    assert shown["no_evict"] == ("off", "default")
    assert shown["overlap"] == ("on", "2 steps in flight; default")
    assert shown.get("scheduler weights") == (("{a = 2.0}", "--set") if name == "fair" else None)

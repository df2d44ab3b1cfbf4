"""Engines and groups on tiny models whose workers sleep, wake, change their weights and grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry import trace

from enginebay import LLM, SamplingParams
from enginebay.config import load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.startup.assembly import start_in
from enginebay.engine.startup.plan import Plan, plan
from enginebay.engine.startup.texts import read_tokenizer
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime

PROMPTS = [[3, 5, 7, 11], list(range(1, 41)), [2] * 17]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
RUNNERS: dict[str, dict[str, Any]] = {"v1": {"use": "v1"}, "v2": {"use": "v2", "options": {"compile": "wait"}}}
"""``[runner]`` of each: one that has all its parts from the first step on."""

Starter = Callable[..., EngineCore]


def config(runner: str, model: Path, **engine: Any) -> dict[str, Any]:
    return {"model": {"path": str(model)}, "runner": RUNNERS[runner], "cache": {"num_blocks": 64}, "engine": engine}


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [tuple(one.token_ids) for one in llm.generate(PROMPTS, GREEDY)]


def fresh(runner: str, model: Path, *sets: str, **engine: Any) -> list[tuple[int, ...]]:
    """The answers of an engine that has done nothing else."""
    with LLM(config(runner, model, **engine), sets=sets) as llm:
        return answers(llm)


def planned(runner: str, model: Path, *sets: str, **engine: Any) -> Plan:
    return plan(load(config(runner, model, **engine), sets=sets, environ={}), PluginHost())


@contextmanager
def groups() -> Iterator[Starter]:
    """Starts groups, and stops them at the end."""
    cores: list[EngineCore] = []

    def started(made: Plan, **options: Any) -> EngineCore:
        core = start_in(trace.INVALID_SPAN, made, system_runtime(), PluginHost(), read_tokenizer(made), **options)
        cores.append(core)
        return core

    try:
        yield started
    finally:
        for core in cores:
            core.stop()


def tokens(core: EngineCore) -> list[tuple[int, ...]]:
    """The answers of a group."""
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(PROMPTS):
        core.add_request(Ask(request_id=f"r{index}", prompt_token_ids=tuple(prompt), params=GREEDY))
    while core.has_work():
        for output in core.step()[0]:
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return [tuple(found[f"r{index}"]) for index in range(len(PROMPTS))]

"""Worker extensions in every worker, under every executor. P6, P7, and what may be called."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginebay import LLM, AsyncLLM, SamplingParams
from enginebay.config import load
from enginebay.engine.startup import bringup
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import (
    ConfigError,
    InvalidRequest,
    OptionsRejected,
    PluginBroken,
    PluginNotFound,
    StartFailed,
    WorkerFailed,
)
from enginebay.messages import PluginsLoaded, RankPlace, WorldPlan
from enginebay.plugins import PluginHost, config_schema
from support.fake_dist import HEAD, FakeSite
from support.fake_engines import Installed
from support.marks import Marks, install_marks, with_marks

EXECUTORS = {"uni": 1, "mp": 1}
"""Executors of this machine by name, with the ranks that each is tried with."""


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_marks(tmp_path / "marks", monkeypatch)


@pytest.fixture
def llm(fake: Installed) -> Iterator[LLM]:
    with LLM(with_marks(fake.config(), mark="seen")) as llm:
        yield llm


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_mark_comes_back_from_every_rank(
    fake: Installed, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # P6
    ranks = EXECUTORS[executor]
    monkeypatch.setenv("PYTHONPATH", fake.environ()["PYTHONPATH"])
    config = with_marks(fake.config(), mark="seen") | {
        "executor": {"use": executor},
        "parallel": {"tensor_parallel_size": ranks},
    }
    with LLM(config) as llm:
        told = [json.loads(answer) for answer in llm.collective_rpc("marks.where")]
        assert [(one["mark"], one["rank"], one["runner"]) for one in told] == [
            ("seen", rank, "FakeRunner") for rank in range(ranks)
        ]
        assert len({one["pid"] for one in told}) == ranks
        assert (os.getpid() in {one["pid"] for one in told}) == (executor == "uni")
        llm.collective_rpc("marks.note", {"to": "all"})
        llm.collective_rpc("marks.note", per_rank=[f"rank {rank}".encode() for rank in range(ranks)])
        notes = [json.loads(answer) for answer in llm.collective_rpc("marks.notes")]
        assert notes == [['{"to":"all"}', f"rank {rank}"] for rank in range(ranks)]
        assert llm.generate("say:x")[0].text == "x"


def test_what_may_be_called_is_declared(llm: LLM) -> None:
    declared = "marks.where, marks.note, marks.notes, marks.explode, marks.lie"
    for method in ("marks.secret", "marks.__init__", "marks", "where", "other.where", "", "marks.where.x"):
        with pytest.raises(InvalidRequest) as caught:
            llm.collective_rpc(method)
        assert str(caught.value) == (f"no worker extension that is loaded declares {method!r}; declared: {declared}")


def test_without_extensions_nothing_may_be_called(fake: Installed) -> None:
    with LLM(fake.config()) as llm, pytest.raises(InvalidRequest, match=r"nothing, since \[worker\] extensions names"):
        llm.collective_rpc("marks.where")


def test_an_exception_is_told_and_the_engine_goes_on(llm: LLM) -> None:
    with pytest.raises(WorkerFailed) as caught:
        llm.collective_rpc("marks.explode", b"me")
    assert f"rank 0 (pid {os.getpid()}" in str(caught.value)
    assert "failed in call_extension: ValueError: asked to explode by me" in str(caught.value)
    assert "marks.py" in caught.value.remote_traceback
    with pytest.raises(WorkerFailed, match=r"TypeError: marks\.lie returned dict, and must return bytes or None"):
        llm.collective_rpc("marks.lie")
    assert llm.generate("say:x")[0].text == "x"


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_a_call_has_a_time_that_comes(llm: LLM, timeout: float) -> None:
    with pytest.raises(
        InvalidRequest, match=f"timeout is more than 0 s and at most 604800 s, not {re.escape(f'{timeout:g}')} s"
    ):
        llm.collective_rpc("marks.note", b"late", timeout=timeout)
    assert llm.collective_rpc("marks.notes", timeout=20) == [b"[]"]


def test_what_cannot_be_sent(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="a payload is bytes, or what JSON can say"):
        llm.collective_rpc("marks.note", object())
    with pytest.raises(InvalidRequest, match="per_rank has 2 payloads"):
        llm.collective_rpc("marks.note", per_rank=[b"", b""])


def test_calls_run_beside_requests(fake: Installed) -> None:
    with LLM(with_marks(fake.config(step_seconds=0.002))) as llm:
        stream = llm.stream("hi", SamplingParams(max_tokens=400))
        next(stream)
        assert json.loads(llm.collective_rpc("marks.where")[0])["mark"] == "unmarked"
        assert llm.status()["unfinished"] == "1"
        stream.close()


def test_it_is_closed_with_its_worker(fake: Installed, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    with LLM(with_marks(fake.config(), closed=str(closed))):
        assert not closed.exists()
    assert closed.exists()


def test_the_same_awaited(fake: Installed) -> None:
    async def main() -> None:
        async with AsyncLLM(with_marks(fake.config(), mark="a")) as llm:
            [told] = await llm.collective_rpc("marks.where")
            assert json.loads(told)["mark"] == "a"
            with pytest.raises(InvalidRequest):
                await llm.collective_rpc("marks.secret")

    asyncio.run(main())


@pytest.mark.parametrize("odd", ["missing", "options", "version"])
def test_an_odd_rank_is_named(fake: Installed, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:  # P7
    original = bringup.compare_plugins

    def compare(plan: Plan, answers: Any) -> None:
        [answer] = answers
        runner, marks = answer.plugins
        changed = {
            "missing": (runner,),
            "options": (runner, _changed(marks, options='{"mark":"another"}')),
            "version": (runner, _changed(marks, version="9.9")),
        }[odd]
        original(plan, [PluginsLoaded(plugins=changed)])

    monkeypatch.setattr(bringup, "compare_plugins", compare)
    with pytest.raises(StartFailed) as caught:
        LLM(with_marks(fake.config(), mark="seen"))
    said = str(caught.value)
    assert said.startswith("rank 0 loaded runner 'fake'")
    ours = (
        """worker extension 'marks' (enginebay-kit-worker_extensions-marks 0.0, options {"closed":"","mark":"seen"})"""
    )
    assert (
        f"but the engine has runner 'fake' (fake-runner 1.0, options {{}}), {ours}".replace(
            "options {}", 'options {"announce":0,"burn_seconds":0.0,"fail":"","hold":"","step_seconds":0.0}'
        )
        in said
    )


def test_the_odd_one_of_two(fake: Installed) -> None:  # P7
    made = plan(load(with_marks(fake.config(), mark="seen"), environ={}), PluginHost())
    two = dataclasses.replace(made, world=WorldPlan(ranks=(RankPlace(), RankPlace(rank=1, local_rank=1))))
    same = PluginsLoaded(plugins=(made.runner.identity, made.worker_extensions[0].identity))
    other = PluginsLoaded(plugins=(made.runner.identity, _changed(same.plugins[1], version="0.1")))
    bringup.compare_plugins(two, [same, same])
    with pytest.raises(StartFailed, match=r"^rank 1 loaded .*marks 0\.1.* but the engine has .*marks 0\.0"):
        bringup.compare_plugins(two, [same, other])


def _changed(identity: Any, **fields: str) -> Any:
    return msgspec.structs.replace(identity, **fields)


def test_what_is_in_force_names_it(fake: Installed) -> None:
    made = plan(load(with_marks(fake.config(), mark="seen"), environ={}), PluginHost())
    [told] = [item for item in made.in_force if item.name == "worker extension marks"]
    assert told.value == "mark = seen, closed = "
    assert dataclasses.asdict(told)["why"] == "enginebay-kit-worker_extensions-marks 0.0"


@pytest.mark.parametrize(
    ("worker", "error", "said"),
    [
        ({"extensions": ["none"]}, PluginNotFound, "No worker extension named 'none' is installed."),
        ({"extensions": ["marks", "marks"]}, ConfigError, "extensions names 'marks' twice"),
        ({"options": {"marks": {}}}, ConfigError, "options has a table for 'marks', which extensions does not name"),
        (
            {"extensions": ["marks"], "options": {"marks": {"colour": "red"}}},
            OptionsRejected,
            "worker extension 'marks' rejects [worker.options.marks]: colour: unknown option",
        ),
    ],
)
def test_what_the_config_may_not_say(
    fake: Installed, worker: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        plan(load(fake.config() | {"worker": worker}, environ={}), PluginHost())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ('["a"]', "its methods are ['a'], and must be a tuple of names"),
        ("(1,)", "its methods are (1,), and must be a tuple of names"),
        ('("_hidden",)', "it declares the method '_hidden': names of public methods are expected"),
        ('("a b",)', "it declares the method 'a b': names of public methods are expected"),
    ],
)
def test_a_descriptor_that_declares_nonsense(site: FakeSite, methods: str, said: str) -> None:
    site.add(
        "odd",
        entry_points={"worker_extensions": {"odd": "odd_module"}},
        modules={
            "odd_module": HEAD
            + f"""
@hookimpl
def enginebay_register_worker_extensions():
    return [WorkerExtensionPlugin(name="odd", factory=make, methods={methods})]
"""
        },
    )
    with pytest.raises(PluginBroken) as caught:
        site.host().load_worker_extensions(["odd"], {})
    assert said in str(caught.value)


def test_one_that_lacks_what_it_declares(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Marks, "notes")
    with pytest.raises(PluginBroken) as caught:
        LLM(with_marks(fake.config()))
    assert str(caught.value) == (
        "worker extension 'marks' of enginebay-kit-worker_extensions-marks 0.0 is broken: it declares the method "
        "notes, and has none"
    )


def test_one_that_cannot_be_made(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Marks, context: object) -> None:
        raise OSError("no licence")

    monkeypatch.setattr(Marks, "__init__", broken)
    with pytest.raises(PluginBroken, match="is broken: making it raised OSError: no licence"):
        LLM(with_marks(fake.config()))


def test_its_options_are_in_the_schema() -> None:
    schema, warnings = config_schema(PluginHost())
    assert warnings == []
    options = schema["$defs"]["WorkerConfig"]["properties"]["options"]["properties"]
    assert options["marks"] == {"$ref": "#/$defs/worker extension.marks.options"}

"""docs/extensions.md against the code: its extension is installed and followed, and its table has every hook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebay import LLM, SamplingParams, hookspecs
from enginebay.interfaces import Reclaim
from enginebay.messages import Incarnation, Slot, WorkerStatus
from support.fake_dist import fake_site
from support.fake_engines import install
from support.repository import ROOT

PAGE = (ROOT / "docs" / "extensions.md").read_text()


def test_what_the_page_builds_knows_what_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], template_child: None
) -> None:
    [source] = re.findall(r"^```python plugin\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for site in fake_site(tmp_path / "page", monkeypatch):
        site.add(
            "enginebay-follow",
            entry_points={"extensions": {"follow": "enginebay_follow_plugin"}},
            modules={"enginebay_follow_plugin": source},
        )
        for fake in install(tmp_path / "fake", monkeypatch):
            with LLM({**fake.config(), "extensions": {"follow": {}}}) as llm:
                llm.generate(["say:one" * 9, "say:two" * 9], SamplingParams(max_tokens=20))
                cached = llm.stats().scheduler.num_cached_blocks
            assert cached > 2
            assert capsys.readouterr().out == f"ended: {{'stop': 2}}, blocks: {{0: {cached}}}\n"


def test_its_probe_says_what_a_worker_holds(tmp_path: Path) -> None:
    [source] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    module: dict[str, Any] = {}
    exec(compile(source, "docs/extensions.md", "exec"), module)
    probe = module["Seats"](tmp_path).enginebay_probe_reclaim
    incarnation = Incarnation(id="a")
    worker = WorkerStatus(slot=Slot(group=0, rank=0), incarnation=incarnation)
    assert probe(worker) is None
    worker = replace(worker, incarnation=replace(incarnation, pid=77))
    (tmp_path / "77").touch()
    assert [found.verdict for found in probe(worker)] == [Reclaim.PENDING]
    (tmp_path / "77").unlink()
    assert [found.verdict for found in probe(worker)] == [Reclaim.RECLAIMED]


def test_every_hook_stands_there() -> None:
    rows = set(re.findall(r"^\| `(enginebay_\w+)\(", PAGE, re.MULTILINE))
    hooks = {name for name in vars(hookspecs) if name.startswith("enginebay_")}
    registering = {name for name in hooks if name.startswith("enginebay_register_")}
    assert rows == hooks - registering - {"enginebay_graph_passes"}  # which is for modules of runners and in workers


def test_arguments_are_those_of_the_hooks() -> None:
    for name, arguments in re.findall(r"^\| `(enginebay_\w+)\(([\w, ]*)\)", PAGE, re.MULTILINE):
        code = getattr(hookspecs, name).__code__
        assert ", ".join(code.co_varnames[: code.co_argcount]) == arguments

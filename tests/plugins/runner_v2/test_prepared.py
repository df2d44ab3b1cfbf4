"""A captured step on disk: it comes back as it was, is found by what it depends on, and is not used when damaged."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginebay.graph import Record, RecordNode
from enginebay.interfaces import GraphPass
from enginebay.worker.loader_facts import ModelFacts
from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2 import making
from enginebay_runner_v2.prepare import prepare
from enginebay_runner_v2.prepared import PreparedStep, key_of, read_prepared, write_prepared


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_CACHE", str(tmp_path))
    return tmp_path


def step() -> PreparedStep:
    body = Record(
        format=1,
        inputs=["x"],
        constants=["w"],
        nodes=[RecordNode(name="y", op="aten::mul.Tensor", args=[{"ref": "x"}, {"ref": "w"}, 1.0])],
        outputs=["y"],
        origins={"w": {"parameter": "model.w"}},
    )
    node = RecordNode(name="z", op="enginebay::select_rows", args=[{"ref": "y"}, {"ref": "rows"}])
    head = Record(format=1, inputs=["rows", "y"], constants=[], nodes=[node], outputs=["z"])
    return PreparedStep(
        body=body,
        head=head,
        shapes=(LayerShape(4, 2, 8, 8, None), LayerShape(4, 2, 8, 8, 16)),
        groups=(LayerGroup(None, (0,)), LayerGroup(16, (1,))),
        facts=ModelFacts(architecture="A", shapes={"model.w": (3, 4)}, prefix="model", tied={"head": "model.w"}),
    )


def one_pass(**changes: str) -> GraphPass:
    return GraphPass(**{"name": "p", "summary": "s", "apply": lambda *_: None, **changes})  # type: ignore[arg-type]  # a test's short form


def test_what_was_written_is_read_again(cache: Path) -> None:
    write_prepared("key", step())
    assert read_prepared("key") == step()
    assert read_prepared("other") is None
    assert [path.name for path in (cache / "graphs").iterdir()] == ["key.json"]
    assert stat.S_IMODE(os.stat(cache / "graphs").st_mode) == 0o700


def test_the_key_is_of_everything_that_the_graph_depends_on() -> None:
    keys = [
        key_of(b"config", [one_pass()], dtype="float32", max_model_len=10),
        key_of(b"confih", [one_pass()], dtype="float32", max_model_len=10),
        key_of(b"config", [one_pass(version="2")], dtype="float32", max_model_len=10),
        key_of(b"config", [one_pass(package="other 1.0")], dtype="float32", max_model_len=10),
        key_of(b"config", [one_pass(), one_pass(name="q")], dtype="float32", max_model_len=10),
        key_of(b"config", [one_pass()], dtype="bfloat16", max_model_len=10),
        key_of(b"config", [one_pass()], dtype="float32", max_model_len=11),
        key_of(b"config", [one_pass()], dtype="float32", max_model_len=10, tensor_rank=1),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == key_of(b"config", [one_pass()], max_model_len=10, dtype="float32")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_never_used_and_never_fatal(cache: Path, data: st.DataObject) -> None:
    write_prepared("key", step())
    path = cache / "graphs" / "key.json"
    whole = path.read_bytes()
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin, len(whole)))
    damaged = whole[:begin] + data.draw(st.binary(max_size=6)) + whole[end:]
    path.write_bytes(damaged)
    got = read_prepared("key")
    assert got is None or isinstance(got, PreparedStep)
    if damaged == whole:
        assert got == step()


def test_it_says_what_is_wrong_with_a_file(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_prepared("key", step())
    path = cache / "graphs" / "key.json"
    path.write_bytes(path.read_bytes().replace(b'"layers":[1]', b'"layers":[0]'))
    with caplog.at_level(logging.WARNING):
        assert read_prepared("key") is None
    assert caplog.messages == [
        f"{path} is not used (its groups are not of its layers): the model is captured again",
    ]


def test_a_cache_that_cannot_be_written_costs_time_alone(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cache / "graphs").write_text("a file stands in the way")
    with caplog.at_level(logging.WARNING):
        write_prepared("key", step())
    assert caplog.messages == [
        f"{cache / 'graphs' / 'key.json'} cannot be written (File exists): the next start captures the model again",
    ]


def test_a_first_capture_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes long: whoever waits hears why, and that the next start does not."""
    (tmp_path / "config.json").write_text("{}")
    context: Any = SimpleNamespace(
        model=SimpleNamespace(path=str(tmp_path), architecture="Any"),
        graph_passes=(),
        dtype="float32",
        max_model_len=64,
        place=SimpleNamespace(rank=0, tensor_rank=0),
        world=SimpleNamespace(tensor_parallel_size=1),
        options=SimpleNamespace(verify_graph=False),
    )
    monkeypatch.setattr(making, "make", lambda context: step())
    assert prepare(context) == prepare(context) == step()
    assert caplog.messages == ["capturing the model's graph, once for this machine and dtype (float32)"]

"""Which runner "auto" takes: by what is asked and what they can do, never by name; and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from enginebay.engine.startup import _choose
from enginebay.engine.startup._accelerators import accelerator_here, device_of_slots
from enginebay.errors import PluginBroken
from enginebay.messages import ModelInfo
from support.fake_dist import FakeSite
from support.plans import MODEL, in_force, make_plan, refused

ABLE = "tensor_parallel=True, pipeline_parallel=True, features=frozenset({'batch_invariant'}), max_draft_tokens=64"
FAST = "captures_graph=True, dtypes=('bfloat16', 'float32'), cache_as_dtype=True"


@pytest.fixture
def two(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    """A fast runner that cannot do everything, beside a plain one that can, on a machine without an accelerator."""
    site.executor("uni", "max_world_size=1")
    site.executor("mp")
    site.executor("far", "multi_node=True, maps_devices=True")
    site.executor("own", "multi_node=True, maps_devices=True, every_rank_schedules=True")
    site.scheduler("fcfs", "deterministic_order=True")
    site.runner("plain", f"devices=('cpu', 'cuda'), {ABLE}", "preference=10")
    site.runner("fast", FAST, "preference=20, supports=lambda m: 'no graph of it' if m.model_type == 'odd' else None")
    monkeypatch.setattr(_choose, "accelerator_here", lambda: None)
    return site


def chosen(site: FakeSite, *sets: str, model: ModelInfo = MODEL) -> tuple[str, str]:
    name, why = in_force(make_plan(site, *sets, model=model))["runner"]
    return name, why.partition("; ")[2]


def test_the_preferred_one_where_it_can_do_what_is_asked(two: FakeSite) -> None:  # P8
    why = "auto: preference 20, the highest of those that support LlamaForCausalLM (plain has 10)"
    assert chosen(two) == ("fast", why)
    assert chosen(two, "model.dtype=float32", "cache.dtype=float32", "device.kind=cpu") == ("fast", why)


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (
            "engine.batch_invariant=true",
            "it does not compute the same bits whatever the batch, and [engine] batch_invariant is on",
        ),
        ("model.dtype=float16", "it computes in bfloat16, float32, and [model] dtype is float16"),
        (
            "cache.dtype=float32",
            "its KV cache has the dtype of its weights, and [cache] dtype is float32, not bfloat16",
        ),
        (
            "speculation.use=ngram speculation.max_tokens=3",
            "it verifies no proposals of a request in a step, and [speculation] max_tokens is 3",
        ),
        ("device.kind=cuda", "it runs on cpu, and [device] kind asks for 'cuda'"),
        (
            "executor.use=mp parallel.tensor_parallel_size=2",
            "it does not split layers, and [parallel] tensor_parallel_size is 2",
        ),
        (
            "executor.use=mp parallel.pipeline_parallel_size=2",
            "it has no pipeline, and [parallel] pipeline_parallel_size is 2",
        ),
        (
            "executor.use=far",
            (
                "nodes of executor 'far' may have an accelerator, which it cannot use; with [device] kind = \"cpu\" "
                "it is considered"
            ),
        ),
    ],
)
def test_what_it_cannot_do_goes_to_the_other_with_the_reason(two: FakeSite, sets: str, reason: str) -> None:  # P8
    name, why = chosen(two, *sets.split())
    assert (name, why.partition("; passed over: ")[2]) == ("plain", f"fast: {reason}")


def test_a_model_that_it_does_not_run_goes_to_the_other(two: FakeSite) -> None:  # P8
    odd = msgspec.structs.replace(MODEL, model_type="odd", dtype="float16")
    name, why = chosen(two, "model.dtype=float32", model=odd)
    assert (name, why.partition("; passed over: ")[2]) == ("plain", "fast: no graph of it")
    half = msgspec.structs.replace(MODEL, dtype="float16")
    name, why = chosen(two, model=half)
    assert (name, why.partition("; passed over: ")[2]) == (
        "plain",
        "fast: it computes in bfloat16, float32, and the model's dtype is float16",
    )


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            "model.dtype=float16",
            (
                "runner 'fast' does not fit: it computes in bfloat16, float32, and [model] dtype is float16. "
                "Change one of the two."
            ),
        ),
        (
            "cache.dtype=float16",
            (
                "runner 'fast' does not fit: its KV cache has the dtype of its weights, and [cache] dtype is float16, "
                "not bfloat16. Change one of the two."
            ),
        ),
        (
            "device.kind=cuda",
            "runner 'fast' does not fit: it runs on cpu, and [device] kind asks for 'cuda'. Change one of the two.",
        ),
    ],
)
def test_named_it_is_refused_instead(two: FakeSite, sets: str, message: str) -> None:  # P8
    assert refused(two, "runner.use=fast", *sets.split()) == message


def test_an_accelerator_goes_to_a_runner_that_drives_it(two: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:  # P8
    monkeypatch.setattr(_choose, "accelerator_here", lambda: "cuda")
    idle = (
        'fast: this machine seems to have an accelerator (cuda), which it cannot use; with [device] kind = "cpu" it '
        "is considered"
    )
    name, why = chosen(two)
    assert (name, why.partition("; passed over: ")[2]) == ("plain", idle)
    assert chosen(two, "executor.use=own")[0] == "plain"
    assert chosen(two, "device.kind=cpu")[0] == "fast"
    assert make_plan(two, "runner.use=fast").runner.plugin.name == "fast"
    monkeypatch.setattr(_choose, "accelerator_here", lambda: "other")  # neither drives it
    assert chosen(two) == (
        "fast",
        "auto: preference 20, the highest of those that support LlamaForCausalLM (plain has 10)",
    )


def test_one_that_hesitates_goes_behind_those_that_do_not(two: FakeSite) -> None:  # P8
    two.runner("slow", FAST, "preference=30, hesitates=lambda: 'it would be slow here'")
    name, why = chosen(two)
    assert (name, why.partition(" (")[2]) == ("fast", "plain has 10); passed over: slow: it would be slow here")
    assert chosen(two, "runner.use=slow") == ("slow", "--set")
    two.runner("odd", FAST, "preference=30, hesitates=lambda: 1 / 0")
    name, why = chosen(two)
    assert (name, why.partition("passed over: ")[2]) == (
        "fast",
        (
            "odd: runner 'odd' is broken: hesitates() raised ZeroDivisionError: division by zero; "
            "slow: it would be slow here"
        ),
    )


def test_one_that_hesitates_is_taken_where_it_is_alone(site: FakeSite) -> None:  # P8
    site.executor("uni")
    site.scheduler("fcfs")
    site.runner("slow", "", "hesitates=lambda: 'it would be slow here'")
    assert chosen(site) == ("slow", "auto: preference 0, the highest of those that support LlamaForCausalLM")


def test_what_a_runner_foresees_is_shown(two: FakeSite) -> None:  # P8
    two.runner("seer", "", "preference=40, foresees=lambda options: {'kernels': ('built', 'yesterday')}")
    assert in_force(make_plan(two))["kernels"] == ("built", "yesterday")
    two.runner("blind", "", "preference=50, foresees=lambda options: {'kernels': 'built'}")
    with pytest.raises(PluginBroken, match="'blind' is broken: foresees\\(\\) raised ValueError: too many"):
        make_plan(two)


@pytest.mark.parametrize(
    ("build", "files", "hidden", "expected"),
    [
        ("2.13.0", ["nvidia0", "nvidiactl"], {}, "cuda"),
        ("2.13.0+cu130", ["nvidia1"], {}, "cuda"),
        ("2.13.0+cu130", ["dxg"], {}, "cuda"),
        ("2.13.0+cu130", ["nvidiactl", "kfd"], {}, None),
        ("2.13.0+cu130", ["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, None),
        ("2.13.0+cu130", ["nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, None),
        ("2.13.0+cu130", ["nvidia0"], {"CUDA_VISIBLE_DEVICES": "0"}, "cuda"),
        ("2.13.0+rocm7.0", ["kfd"], {}, "cuda"),
        ("2.13.0+rocm7.0", ["nvidia0"], {}, None),
        ("2.13.0+cpu", ["nvidia0", "kfd"], {}, None),
        ("2.13.0+xpu", ["nvidia0"], {}, None),
    ],
)
def test_an_accelerator_shows_in_files_and_the_build_of_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    build: str,
    files: list[str],
    hidden: dict[str, str],
    expected: str | None,
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: build)
    for name in files:
        (tmp_path / name).touch()
    assert accelerator_here(tmp_path, hidden) == expected


@pytest.mark.parametrize(
    ("asked", "devices", "here", "found", "named"),
    [
        ("cuda", ("cpu", "cuda"), True, None, "cuda"),
        ("cu\nda", ("cpu",), True, None, "cu?da"),
        ("auto", ("cpu",), True, "cuda", "cpu"),
        ("auto", ("cpu",), False, None, "cpu"),
        ("auto", ("cpu", "cuda"), True, "cuda", "cuda"),
        ("auto", ("cpu", "cuda"), True, None, "cpu"),
        ("auto", ("cpu", "other"), True, "cuda", "cpu"),
        ("auto", ("cuda", "other"), True, None, ""),
        ("auto", ("cpu", "cuda"), False, "cuda", ""),
    ],
)
def test_slots_are_named_by_the_device_that_is_foreseen(
    monkeypatch: pytest.MonkeyPatch, asked: str, devices: tuple[str, ...], here: bool, found: str | None, named: str
) -> None:
    monkeypatch.setattr("enginebay.engine.startup._accelerators.accelerator_here", lambda: found)
    assert device_of_slots(asked, devices, here=here) == named

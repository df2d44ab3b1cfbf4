"""Executor, runner and scheduler in the plan: parts that fit, or a refusal with a way out."""

from __future__ import annotations

import pytest

from support.fake_dist import FakeSite
from support.plans import in_force, make_plan, refused


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            "parallel.tensor_parallel_size=4",
            (
                "executor 'uni' runs one worker, and [parallel] asks for 4: choose an "
                "executor for several, for example 'mp'."
            ),
        ),
        (
            "parallel.tensor_parallel_size=2 executor.use=mp runner.use=v1",
            (
                "runner 'v1' does not fit: it does not split "
                "layers, and [parallel] tensor_parallel_size is 2. Change one of the two."
            ),
        ),
        (
            "parallel.pipeline_parallel_size=2 executor.use=mp runner.use=v1",
            (
                "runner 'v1' does not fit: it has no "
                "pipeline, and [parallel] pipeline_parallel_size is 2. Change one of the two."
            ),
        ),
        (
            "device.kind=tpu runner.use=v1",
            (
                "runner 'v1' does not fit: it runs on cpu, cuda, and [device] kind asks for "
                "'tpu'. Change one of the two."
            ),
        ),
        ("device.ids=[0,1]", "[device] ids = [0, 1] names 2, and [parallel] asks for 1: one for each worker."),
        ("device.ids=[-1]", "[device] ids = [-1] must be different numbers from 0 on."),
        (
            "scheduler.overlap=true",
            (
                "[scheduler] overlap = true (--set): executor 'uni' takes one step at a time: leave it out, or set it "
                "to false."
            ),
        ),
        (
            "speculation.use=ngram",
            (
                "[speculation] max_tokens is 4, and runner 'v1' verifies no proposals: "
                'set use = "off", or choose another.'
            ),
        ),
    ],
)
def test_parts_that_do_not_fit(parts: FakeSite, sets: str, message: str) -> None:  # P8
    assert refused(parts, *sets.split()) == message


def test_every_rank_schedules_needs_a_deterministic_order(parts: FakeSite) -> None:  # P8
    parts.executor("external_launcher", "every_rank_schedules=True")
    parts.scheduler("lottery")
    assert refused(parts, "executor.use=external_launcher", "scheduler.use=lottery") == (
        "scheduler 'lottery' declares no deterministic order, and executor 'external_launcher' runs one scheduler "
        "per rank: choose another scheduler or executor 'mp'."
    )
    assert make_plan(parts, "executor.use=external_launcher").scheduler.plugin.name == "fcfs"


def test_the_way_out_is_the_executor_that_asks_least(parts: FakeSite) -> None:  # P8
    parts.executor("a_launcher", "every_rank_schedules=True, attaches=True")
    parts.executor("b_cluster", "multi_node=True")
    parts.executor("c_pair", "max_world_size=2")
    parts.add("broken", entry_points={"executors": {"d_broken": "is_not_there"}})
    refusal = refused(parts, "parallel.tensor_parallel_size=4")
    assert refusal.endswith("choose an executor for several, for example 'mp'.")
    parts.executor("external_launcher", "every_rank_schedules=True")
    parts.scheduler("lottery")
    refusal = refused(parts, "executor.use=external_launcher", "scheduler.use=lottery")
    assert refusal.endswith("choose another scheduler or executor 'c_pair'.")


def test_a_runner_that_varies_with_the_batch_is_not_taken_where_it_must_not(parts: FakeSite) -> None:  # P8
    assert refused(parts, "engine.batch_invariant=true", "runner.use=v1") == (
        "[engine] batch_invariant is on, and runner 'v1' does not compute the same "
        "bits whatever the batch: choose a runner with the feature batch_invariant, or turn it off."
    )
    assert refused(parts, "engine.batch_invariant=true") == (
        "no installed runner runs the model tiny:\n"
        "  v1: it does not compute the same bits whatever the batch, and [engine] batch_invariant is on"
    )
    parts.runner("steady", "features=frozenset({'batch_invariant'})", "preference=1")
    planned = make_plan(parts, "engine.batch_invariant=true")
    assert planned.runner.plugin.name == "steady"


def test_an_executor_alone_offers_no_other(site: FakeSite) -> None:  # P8
    site.executor("uni", "max_world_size=2")
    site.runner("v1", "tensor_parallel=True")
    site.scheduler("fcfs")
    assert refused(site, "parallel.tensor_parallel_size=4") == (
        "executor 'uni' runs at most 2 workers, and [parallel] asks for 4: "
        "set tensor_parallel_size and pipeline_parallel_size to 1; no executor for as many is installed."
    )
    planned = make_plan(site, "parallel.tensor_parallel_size=2")
    assert in_force(planned)["workers"] == ("2", "--set")


def test_an_executor_that_maps_devices(parts: FakeSite) -> None:  # P8
    parts.executor("ray", "maps_devices=True")
    assert refused(parts, "executor.use=ray", "device.ids=[0]") == (
        "executor 'ray' gives each worker its devices itself: leave [device] ids out."
    )


def test_auto_takes_the_most_preferred_that_fits_and_tells_of_the_others(parts: FakeSite) -> None:  # P8
    parts.runner("v9", "", "preference=90, supports=lambda model: f'{model.model_type} is not in its list'")
    parts.runner("tpu", "devices=('tpu',)", "preference=80")
    parts.runner("heavy", "", "preference=70, requires_modules={'package_not_there': 'heavy[all]'}")
    parts.plugin("runners", "broken", "raise RuntimeError('x')")
    planned = make_plan(parts, "device.kind=cpu")
    assert planned.runner.plugin.name == "v1"
    assert in_force(planned)["runner"] == (
        "v1",
        (
            "v1-pkg 1.2; auto: preference 10, the highest of those that support LlamaForCausalLM; passed over: "
            "broken: runner 'broken' of broken-pkg 1.0 is broken: importing broken_pkg_plugin raised RuntimeError: x. "
            "Repair or uninstall broken-pkg, or choose another runner.; "
            "heavy: runner 'heavy' needs the package package_not_there: pip install 'heavy[all]'; "
            "tpu: it runs on tpu, and [device] kind asks for 'cpu'; v9: llama is not in its list"
        ),
    )


def test_auto_with_nothing_that_fits_lists_every_reason(site: FakeSite) -> None:  # P8
    site.executor("uni")
    site.scheduler("fcfs")
    assert refused(site) == "no installed runner runs the model tiny: none is installed."
    site.runner("a", "", "supports=lambda model: 'too small'")
    site.runner("b", "", "supports=lambda model: 1 / 0")
    site.runner("c", "", "supports=lambda model: True")
    site.runner("d", "", r"supports=lambda model: 'too\nlarge\x1b[31m. '")
    site.runner("e", "", r"supports=lambda model: {}['a\nb']")
    site.runner("f", "", "supports=lambda model: int('a\\nb')")
    assert refused(site) == (
        "no installed runner runs the model tiny:\n"
        "  a: too small\n"
        "  b: runner 'b' is broken: supports() raised ZeroDivisionError: division by zero\n"
        "  c: runner 'c' is broken: supports() returned True, and must return None for yes or the reason for no\n"
        "  d: too large?[31m\n"
        "  e: runner 'e' is broken: supports() raised KeyError: 'a\\nb'\n"
        "  f: runner 'f' is broken: supports() raised ValueError: invalid literal for int() with base 10: 'a\\nb'"
    )


def test_a_named_runner_that_does_not_fit_is_refused(parts: FakeSite) -> None:  # P8
    parts.runner("v9", "", "preference=90, supports=lambda model: 'it knows no llama.'")
    assert refused(parts, "runner.use=v9") == (
        "runner 'v9' does not run the model tiny: it knows no llama. Choose another model, or [runner] use = \"auto\"."
    )

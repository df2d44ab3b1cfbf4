"""The plan: what is settled, by whom, and why; nothing is degraded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.config import load
from enginebay.engine.startup.plan import InForce, plan
from enginebay.errors import ConfigError, OptionsRejected, PluginBroken, PluginNotFound
from enginebay.messages import ModelInfo, RankPlace
from support.fake_dist import FakeSite
from support.plans import MODEL, in_force, make_plan, refused


def test_defaults(parts: FakeSite) -> None:  # P8
    planned = make_plan(parts)
    assert planned.in_force == (
        InForce("model", "/models/tiny", "the imported model; [model] path is not set"),
        InForce("executor", "uni", "uni-pkg 1.0; default"),
        InForce("runner", "v1", "v1-pkg 1.2; auto: preference 10, the highest of those that support LlamaForCausalLM"),
        InForce("scheduler", "fcfs", "fcfs-pkg 1.0; default"),
        InForce("workers", "1", "default"),
        InForce("device", "auto", "settled when the worker starts: an accelerator the runner supports, else cpu"),
        InForce("dtype", "bfloat16", "the model's"),
        InForce("cache_dtype", "bfloat16", "as dtype"),
        InForce("chunked_prefill", "on", "default"),
        InForce("max_model_len", "8192", "the model's"),
        InForce("max_num_seqs", "256", "default"),
        InForce("max_num_batched_tokens", "2048", "default"),
        InForce("block_size", "16", "default"),
        InForce("prefix_caching", "on", "default"),
        InForce("cache size", "auto", "settled when the worker has loaded the model"),
        InForce("long_prefill_token_threshold", "no cap", "default"),
        InForce("reserve_whole_prompt", "off", "default"),
        InForce("watermark", "0.0% of the KV blocks", "default"),
        InForce("no_evict", "off", "default"),
        InForce("overlap", "off", "executor 'uni' takes one step at a time"),
        InForce("speculation", "off", "default"),
        InForce("execution", "eager", "runner 'v1' captures no graph"),
        InForce("attention", "auto", "settled when the worker has loaded the model"),
        InForce("recovery", "none", "executor 'uni' does not start lost workers again"),
        InForce("status sinks", "none", "--set"),
    )
    assert (planned.dtype, planned.cache_dtype, planned.block_size, planned.max_model_len) == (
        "bfloat16",
        "bfloat16",
        16,
        8192,
    )
    assert planned.limits.max_num_seqs == 256
    assert planned.limits.max_num_batched_tokens == 2048
    assert planned.world.ranks == (RankPlace(),)


def test_recovery_is_shown_with_its_origin(parts: FakeSite) -> None:
    parts.executor("again", "restartable=True")
    shown = in_force(make_plan(parts, "executor.use=again", "recovery.max_restarts=0", "recovery.window=90.5"))
    assert {name: told for name, told in shown.items() if name.startswith("recovery")} == {
        "recovery max_restarts": ("0", "--set"),
        "recovery max_restarts_in_all": ("20", "default"),
        "recovery window": ("90.5", "--set"),
        "recovery good_run": ("600", "default"),
        "recovery failed_starts": ("2", "default"),
        "recovery longest_wait": ("60", "default"),
        "recovery reclaim": ("30", "default"),
    }


def test_what_the_mechanics_keep_is_shown_with_its_origin(parts: FakeSite) -> None:  # P8
    sets = ("long_prefill_token_threshold=64", "reserve_whole_prompt=true", "watermark=0.05", "no_evict=true")
    planned = make_plan(parts, *(f"scheduler.{one}" for one in sets), "scheduler.chunked_prefill=false")
    names = [one.partition("=")[0] for one in (*sets, "chunked_prefill")]
    assert [(i.value, i.why) for name in names for i in planned.in_force if i.name == name] == [
        ("64", "--set"),
        ("on", "--set"),
        ("5.0% of the KV blocks", "--set"),
        ("on", "--set"),
        ("off", "--set"),
    ]
    limits = planned.limits
    assert (limits.long_prefill_token_threshold, limits.reserve_whole_prompt, limits.watermark, limits.no_evict) == (
        64,
        True,
        0.05,
        True,
    )


def test_what_was_set_is_kept_with_its_origin(parts: FakeSite) -> None:  # P8
    sets = [
        "model.dtype=float32",
        "cache.dtype=float16",
        "model.max_model_len=512",
        "cache.block_size=32",
        "cache.num_blocks=100",
        "scheduler.max_num_seqs=4",
        "scheduler.max_num_batched_tokens=64",
        "cache.prefix_caching=false",
        "device.kind=cpu",
        "scheduler.watermark=0.1",
        "scheduler.no_evict=true",
        "runner.use=v1",
    ]
    planned = make_plan(parts, *sets)
    told = in_force(planned)
    assert {name for name, (_, why) in told.items() if why == "--set"} == {
        "device",
        "watermark",
        "no_evict",
        "status sinks",
        "dtype",
        "cache_dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "prefix_caching",
        "num_blocks",
    }
    assert told["runner"] == ("v1", "v1-pkg 1.2; --set")
    assert told["prefix_caching"] == ("off", "--set")
    assert (planned.limits.watermark, planned.limits.no_evict, planned.prefix_caching) == (0.1, True, False)


def test_batch_invariant_and_graphs_of_a_runner_that_can(parts: FakeSite) -> None:  # P8
    parts.runner("exact", "features=frozenset({'batch_invariant'}), captures_graph=True", "preference=99")
    planned = make_plan(parts, "engine.batch_invariant=true")
    assert in_force(planned)["batch_invariant"] == ("on", "--set; how is found when the worker loads the model")
    assert "batch_invariant" not in in_force(make_plan(parts))
    assert in_force(planned)["execution"] == ("captured graph", "runner 'exact' captures graphs")


def test_ranks_of_tensor_and_pipeline(site: FakeSite) -> None:
    site.executor("mp")
    site.runner("v1", "tensor_parallel=True, pipeline_parallel=True")
    site.scheduler("fcfs")
    sets = ["executor.use=mp", "parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"]
    world = make_plan(site, *sets).world
    assert [(r.rank, r.local_rank, r.tensor_rank, r.pipeline_rank) for r in world.ranks] == [
        (0, 0, 0, 0),
        (1, 1, 1, 0),
        (2, 2, 0, 1),
        (3, 3, 1, 1),
    ]
    assert world.output_rank == 2


def test_a_dtype_that_nobody_computes_in(parts: FakeSite) -> None:  # P8
    from msgspec.structs import replace

    eight = replace(MODEL, dtype="float8_e4m3fn")
    assert refused(parts, model=eight) == (
        "the model tiny has dtype 'float8_e4m3fn', which is none of bfloat16, float16, float32: set [model] dtype."
    )
    assert make_plan(parts, "model.dtype=float32", model=eight).dtype == "float32"


def test_broken_and_unknown_names_stop(parts: FakeSite) -> None:  # P2, P3
    parts.plugin("schedulers", "bad", "raise RuntimeError('x')")
    with pytest.raises(PluginBroken):
        make_plan(parts, "scheduler.use=bad")
    with pytest.raises(PluginNotFound):
        make_plan(parts, "executor.use=unni")
    with pytest.raises(OptionsRejected) as caught:
        make_plan(parts, "scheduler.options.x=1")
    assert str(caught.value) == (
        "--set: scheduler 'fcfs' rejects [scheduler.options]: x: unknown option. Known options: none"
    )


EXTENSION = """
class Options2(Options):
    port: int = 1

class Watch:
    def __init__(self, options):
        pass

    @hookimpl
    def enginebay_configure(self, config):
        if config.model.seed == 13:
            from enginebay.errors import ConfigError
            raise ConfigError("[model] seed = 13 is unlucky: choose another")

    @hookimpl
    def enginebay_wrap_executor(self, executor, context):
        return None

@hookimpl
def enginebay_register_extensions():
    return [ExtensionPlugin(name="watch", options=Options2, factory=Watch)]
"""


def test_extensions_are_loaded_told_of_and_may_refuse(parts: FakeSite) -> None:
    parts.plugin("extensions", "watch", EXTENSION)
    planned = make_plan(parts, "extensions.watch={port = 7}")
    assert [one.plugin.name for one in planned.extensions] == ["watch"]
    assert in_force(planned)["extension watch"] == ("port = 7", "watch-pkg 1.0; --set")
    assert in_force(planned)["executor wrapped by"] == ("extension 'watch' (watch-pkg 1.0)", "innermost first")
    with pytest.raises(ConfigError, match=r"^\[model\] seed = 13 is unlucky: choose another$"):
        make_plan(parts, "extensions.watch={}", "model.seed=13")


FORESEES = """
class Asked(Options):
    port: int = 1

@hookimpl
def enginebay_register_extensions():
    seen = lambda options: {"port": (options.port / (options.port - 3), "it was asked for")}
    return [ExtensionPlugin(name="seer", options=Asked, factory=lambda options: object(), foresees=seen)]
"""


def test_what_an_extension_foresees_is_told(parts: FakeSite) -> None:
    parts.plugin("extensions", "seer", FORESEES)
    assert in_force(make_plan(parts, "extensions.seer={port = 4}"))["port"] == ("4.0", "it was asked for")
    assert "port" not in in_force(make_plan(parts))
    said = r"^extension 'seer' is broken: foresees\(\) raised ZeroDivisionError: division by zero$"
    with pytest.raises(PluginBroken, match=said):
        make_plan(parts, "extensions.seer={port = 3}")


def test_generation_settings_that_are_not_applied_are_told_of(parts: FakeSite) -> None:
    from msgspec.structs import replace

    picky = replace(MODEL, ignored_generation=("num_beams = 4", "repetition_penalty = 1.3"))
    assert in_force(make_plan(parts, model=picky))["generation_config"] == (
        "not applied: num_beams = 4, repetition_penalty = 1.3",
        "requests carry their own sampling",
    )
    assert "generation_config" not in in_force(make_plan(parts))


def test_the_model_is_read_from_its_path(parts: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve_model(path: Path | None, *, progress: bool) -> Path | None:
        asked.append((path, progress))
        return path

    def read_model_info(folder: Path, *, name: str | None, needs_tokenizer: bool) -> ModelInfo:
        asked.append((folder, name, needs_tokenizer))
        return MODEL

    monkeypatch.setattr("enginebay.models.resolve_model", resolve_model)
    monkeypatch.setattr("enginebay.models.read_model_info", read_model_info)
    sets = ["model.path=/models/tiny", "model.served_model_name=mine", "status.sinks=[]"]
    resolved = load(None, sets=sets, environ={})
    planned = plan(resolved, parts.host())
    path = resolved.config.model.path
    assert asked == [(path, True), (path, "mine", True)]
    assert in_force(planned)["model"] == ("/models/tiny", "--set")

"""The plan: what fits is settled with its reason, what does not is refused with a way out; nothing is degraded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.config import load
from enginebay.engine.startup.plan import InForce, Plan, plan
from enginebay.errors import CapabilityError, ConfigError, OptionsRejected, PluginBroken, PluginNotFound
from enginebay.messages import ModelInfo, RankPlace
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
    return plan(load(None, sets=sets, environ={}), site.host(), model=model)


def refused(site: FakeSite, *sets: str, model: ModelInfo = MODEL) -> str:
    with pytest.raises(CapabilityError) as caught:
        make_plan(site, *sets, model=model)
    return str(caught.value)


def in_force(planned: Plan) -> dict[str, tuple[str, str]]:
    return {one.name: (one.value, one.why) for one in planned.in_force}


@pytest.fixture
def parts(site: FakeSite) -> FakeSite:
    """The usual three, as strangers would ship them."""
    site.executor("uni", "max_world_size=1")
    site.executor("mp", "max_in_flight=4")
    site.runner("v1", "devices=('cpu', 'cuda')", "preference=10", version="1.2")
    site.scheduler("fcfs", "deterministic_order=True")
    return site


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
        InForce("overlap", "off", "this version runs steps one after another"),
        InForce("execution", "eager", "runner 'v1' captures no graph"),
        InForce("attention", "auto", "settled when the worker has loaded the model"),
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


@pytest.mark.parametrize(
    ("constraints", "sets", "name", "value", "why"),
    [
        ("block_sizes=(64, 128)", "", "block_size", "64", "runner 'acme' 3.0 (its first allowed size; default 16)"),
        ("block_sizes=(64, 128)", "cache.block_size=128", "block_size", "128", "--set"),
        ("max_num_seqs=8", "", "max_num_seqs", "8", "runner 'acme' 3.0 takes 8; default 256"),
        ("max_num_seqs=8", "scheduler.max_num_seqs=4", "max_num_seqs", "4", "--set"),
        (
            "max_num_batched_tokens=512",
            "",
            "max_num_batched_tokens",
            "512",
            "runner 'acme' 3.0 takes 512; default 2048",
        ),
        ("max_num_batched_tokens=99", "", "max_num_seqs", "99", "no more than max_num_batched_tokens; default 256"),
        (
            "",
            "scheduler.max_num_batched_tokens=64",
            "max_num_seqs",
            "64",
            ("no more than max_num_batched_tokens; default 256"),
        ),
        ("", "scheduler.max_num_seqs=4096", "max_num_batched_tokens", "4096", "as many as max_num_seqs; default 2048"),
        ("chunked_prefill=False", "", "chunked_prefill", "off", "runner 'acme' 3.0 cannot do it"),
        (
            "chunked_prefill=False",
            "",
            "max_num_batched_tokens",
            "8192",
            ("as many as max_model_len, since prompts are not split; default 2048"),
        ),
        (
            "",
            "scheduler.chunked_prefill=false",
            "max_num_batched_tokens",
            "8192",
            ("as many as max_model_len, since prompts are not split; default 2048"),
        ),
        ("chunked_prefill=False", "model.max_model_len=512", "max_num_batched_tokens", "2048", "default"),
        (
            "chunked_prefill=False, max_num_batched_tokens=1024",
            "",
            "max_model_len",
            "1024",
            ("runner 'acme' 3.0 takes 1024 tokens of one step, and a prompt is not split; the model's is 8192"),
        ),
        (
            "max_batch_context_tokens=4096",
            "",
            "max_model_len",
            "4096",
            ("runner 'acme' 3.0 takes 4096 tokens of context in a batch; the model's is 8192"),
        ),
        (
            "chunk_multiple=4096",
            "",
            "max_num_batched_tokens",
            "4096",
            ("runner 'acme' 3.0 takes prompts in multiples of 4096; default 2048"),
        ),
        ("prefix_caching=False", "", "prefix_caching", "off", "runner 'acme' 3.0 cannot do it"),
    ],
)
def test_constraints_fill_what_is_unset(
    parts: FakeSite, constraints: str, sets: str, name: str, value: str, why: str
) -> None:  # P8
    parts.runner("acme", f"constraints=BatchConstraints({constraints})", "preference=50", version="3.0")
    planned = make_plan(parts, *sets.split())
    assert in_force(planned)[name] == (value, why)
    limits = {
        "block_size": planned.block_size,
        "max_num_seqs": planned.limits.max_num_seqs,
        "max_num_batched_tokens": planned.limits.max_num_batched_tokens,
        "max_model_len": planned.max_model_len,
        "chunked_prefill": "on" if planned.limits.chunked_prefill else "off",
        "prefix_caching": "on" if planned.prefix_caching else "off",
    }
    assert str(limits[name]) == value


@pytest.mark.parametrize(
    ("constraints", "sets", "message"),
    [
        (
            "block_sizes=(64, 128)",
            "cache.block_size=16",
            (
                "[cache] block_size = 16 (--set) does not fit runner 'acme' "
                "3.0, which takes 64, 128: leave it out, or choose one of these."
            ),
        ),
        (
            "max_num_seqs=8",
            "scheduler.max_num_seqs=9",
            ("[scheduler] max_num_seqs = 9 (--set) does not fit runner 'acme' 3.0, which takes 8: lower it."),
        ),
        (
            "max_num_batched_tokens=64",
            "scheduler.max_num_batched_tokens=65",
            (
                "[scheduler] max_num_batched_tokens = 65 "
                "(--set) does not fit runner 'acme' 3.0, which takes 64: lower it."
            ),
        ),
        (
            "chunked_prefill=False",
            "scheduler.chunked_prefill=true",
            (
                "[scheduler] chunked_prefill = true (--set) does "
                "not fit runner 'acme' 3.0, which cannot do it: leave it out, or set it to false."
            ),
        ),
        (
            "prefix_caching=False",
            "cache.prefix_caching=true",
            (
                "[cache] prefix_caching = true (--set) does "
                "not fit runner 'acme' 3.0, which cannot do it: leave it out, or set it to false."
            ),
        ),
        (
            "",
            "model.max_model_len=9000",
            ("[model] max_model_len = 9000 (--set) does not fit the model tiny, which takes 8192 tokens: lower it."),
        ),
        (
            "max_batch_context_tokens=100",
            "model.max_model_len=200",
            (
                "[model] max_model_len = 200 (--set) does not fit "
                "runner 'acme' 3.0, which takes 100 tokens of context in a batch: lower it."
            ),
        ),
        (
            "chunked_prefill=False",
            "scheduler.max_num_batched_tokens=1000",
            (
                "[scheduler] max_num_batched_tokens = 1000 "
                "(--set) does not fit max_model_len = 8192 while prompts are not split: raise it to 8192, set [model] "
                "max_model_len = 1000, or turn chunked_prefill on."
            ),
        ),
        (
            "chunk_multiple=128",
            "scheduler.max_num_batched_tokens=100",
            (
                "[scheduler] max_num_batched_tokens = 100 "
                "(--set) does not fit runner 'acme' 3.0, which takes prompts in multiples of 128: raise it."
            ),
        ),
        (
            "",
            "scheduler.max_num_batched_tokens=8 scheduler.max_num_seqs=16",
            (
                "[scheduler] max_num_seqs = 16 (--set) "
                "does not fit max_num_batched_tokens = 8 (--set), since every running request takes a token of each "
                "step: lower the one or raise the other."
            ),
        ),
    ],
)
def test_what_was_set_and_does_not_fit_is_refused(
    parts: FakeSite, constraints: str, sets: str, message: str
) -> None:  # P8
    parts.runner("acme", f"constraints=BatchConstraints({constraints})", "preference=50", version="3.0")
    assert refused(parts, *sets.split()) == message


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
            "engine.batch_invariant=true",
            (
                "[engine] batch_invariant is on, and runner 'v1' does not compute the same "
                "bits whatever the batch: choose a runner with the feature batch_invariant, or turn it off."
            ),
        ),
        (
            "scheduler.overlap=on",
            ('[scheduler] overlap is "on", and this version runs steps one after another: set it to "auto" or "off".'),
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


def test_an_executor_alone_offers_no_other(site: FakeSite) -> None:  # P8
    site.executor("uni", "max_world_size=2")
    site.runner("v1", "tensor_parallel=True")
    site.scheduler("fcfs")
    assert refused(site, "parallel.tensor_parallel_size=4") == (
        "executor 'uni' runs at most 2 workers, and [parallel] asks for 4: "
        "set tensor_parallel_size and pipeline_parallel_size to 1; no other executor is installed."
    )
    planned = make_plan(site, "parallel.tensor_parallel_size=2")
    assert in_force(planned)["workers"] == ("2", "--set")


def test_an_executor_that_maps_devices(parts: FakeSite) -> None:  # P8
    parts.executor("ray", "maps_devices=True")
    assert refused(parts, "executor.use=ray", "device.ids=[0]") == (
        "executor 'ray' gives each worker its devices itself: leave [device] ids out."
    )


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
    resolved = load(None, sets=["model.path=/models/tiny", "model.served_model_name=mine"], environ={})
    planned = plan(resolved, parts.host())
    path = resolved.config.model.path
    assert asked == [(path, True), (path, "mine", True)]
    assert in_force(planned)["model"] == ("/models/tiny", "--set")

"""All faults of a config in one report, each with its origin, section, key and the known keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.config import EngineConfig, load
from enginebay.errors import ConfigError

SECTIONS = (
    "Known sections: model, parallel, device, executor, runner, scheduler, cache, speculation, worker, extensions, "
    "status, deadlines, recovery, engine, server, telemetry"
)
CACHE = (
    "Known keys: memory_utilization, memory_bytes, num_blocks, block_size, dtype, prefix_caching, hash, offload_bytes"
)
PARALLEL = "Known keys: tensor_parallel_size, pipeline_parallel_size, data_parallel_size"
SCHEDULER = (
    "Known keys: use, max_num_seqs, max_num_batched_tokens, chunked_prefill, long_prefill_token_threshold, "
    "reserve_whole_prompt, watermark, no_evict, overlap, options"
)


def said(*sets: str, path: Path | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, sets=sets, environ=environ)
    return str(caught.value)


def test_three_wrong_keys_in_one_report(tmp_path: Path) -> None:  # P4
    path = tmp_path / "engine.toml"
    path.write_text("[scheduler]\nmax_seqs = 4\n[cache]\nblok_size = 16\n[parallel]\ntp = 2\n")
    assert said(path=path) == (
        f"the config has 3 faults:\n"
        f"  {path}: [parallel] tp: unknown key. Did you mean [parallel] tensor_parallel_size? {PARALLEL}\n"
        f"  {path}: [scheduler] max_seqs: unknown key. Did you mean 'max_num_seqs'? {SCHEDULER}\n"
        f"  {path}: [cache] blok_size: unknown key. Did you mean 'block_size'? {CACHE}"
    )


def test_each_fault_has_its_own_origin(tmp_path: Path) -> None:  # P4
    path = tmp_path / "engine.toml"
    path.write_text("[scheduler]\nmax_num_seqs = 0\n")
    assert said("cache.dtype=fp8", "novalue", path=path, ENGINEBAY__MODEL__SEED="-1", ENGINEBAY__X="1") == (
        f"the config has 5 faults:\n"
        f"  ENGINEBAY__X: names no section and key; write ENGINEBAY__SECTION__KEY\n"
        f"  --set novalue: there is no value; write --set section.key=value\n"
        f"  ENGINEBAY__MODEL__SEED: [model] seed: must be at least 0, and is -1\n"
        f"  {path}: [scheduler] max_num_seqs: must be at least 1, and is 0\n"
        f"  --set: [cache] dtype: must be 'auto', 'float32', 'bfloat16' or 'float16', and is 'fp8'"
    )


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("cache.block_size=0", "--set: [cache] block_size: must be at least 1 or must be 'auto', and is 0"),
        ("cache.block_size=x", "--set: [cache] block_size: must be a whole number or must be 'auto', and is 'x'"),
        ("model.max_model_len=3.5", "--set: [model] max_model_len: must be a whole number, and is 3.5"),
        ("scheduler.watermark=1", "--set: [scheduler] watermark: must be less than 1, and is 1"),
        ("scheduler.no_evict=maybe", "--set: [scheduler] no_evict: must be true or false, and is 'maybe'"),
        ("deadlines.stop=0", "--set: [deadlines] stop: must be more than 0, and is 0"),
        ("deadlines.stop=inf", "--set: [deadlines] stop: must be a finite number, and is inf"),
        ("device.ids=[0, 'a']", "--set: [device] ids.1: must be a whole number, and is 'a'"),
        (
            "cache.offload_bytes=1024",
            (
                "--set: [cache] offload_bytes: blocks stay on the device: there is no offloading in this version; "
                "leave it out, or 0"
            ),
        ),
        ("device.ids=3", "--set: [device] ids: must be a list, and is 3"),
        ("executor.options=3", "--set: [executor] options: must be a table, and is 3"),
        (
            "cache.gpu_memory_utilization=0.9",
            (f"--set: [cache] gpu_memory_utilization: unknown key. Did you mean 'memory_utilization'? {CACHE}"),
        ),
        (
            "scheduler.gpu_memory_utilization=0.9",
            (
                f"--set: [scheduler] gpu_memory_utilization: unknown key. Did you "
                f"mean [cache] memory_utilization? {SCHEDULER}"
            ),
        ),
        (
            "scheduler.max_model_len=9",
            (f"--set: [scheduler] max_model_len: unknown key. Did you mean [model] max_model_len? {SCHEDULER}"),
        ),
        (
            "parallel.tensor_parallel=2",
            (f"--set: [parallel] tensor_parallel: unknown key. Did you mean 'tensor_parallel_size'? {PARALLEL}"),
        ),
        (
            "model.tp=2",
            (
                "--set: [model] tp: unknown key. Did you mean [parallel] tensor_parallel_size? "
                "Known keys: path, served_model_name, tokenizer, dtype, seed, max_model_len"
            ),
        ),
        (
            "cache.swap_space=4",
            (
                "--set: [cache] swap_space: unknown key. vLLM's flag of that name has no key here: "
                f"a preempted request is computed again, and nothing is swapped. {CACHE}"
            ),
        ),
        (
            "model.trust-remote-code=true",
            (
                "--set: [model] trust-remote-code: unknown key. vLLM's flag of that name has no key here: refused: "
                "enginebay runs no code that comes with a model. "
                "Known keys: path, served_model_name, tokenizer, dtype, seed, max_model_len"
            ),
        ),
        ("schedular.use=fcfs", f"--set: [schedular]: unknown section. Did you mean 'scheduler'? {SECTIONS}"),
        ("structured.backend=1", f"--set: [structured]: unknown section. It is not in this version. {SECTIONS}"),
        ("status.sink=1", "--set: [status] sink: unknown key. Did you mean 'sinks'? Known keys: sinks"),
        ("status.sinks=sqlite", "--set: [status] sinks: must be a list, and is 'sqlite'"),
        ('status.sinks=["a", "a"]', "--set: [status]: sinks names 'a' twice: once is enough"),
        (
            "status.sqlit.history=1",
            (
                "--set: [status]: there is a table for 'sqlit', which sinks does not name. Did you mean 'sqlite'? "
                "Named: sqlite"
            ),
        ),
        ("scheduler.use.x=1", "--set scheduler.use.x: scheduler.use is a value, and no table"),
        ("scheduler..x=1", "--set scheduler..x: names no section and key; write --set section.key=value"),
    ],
)
def test_messages(item: str, message: str) -> None:  # P4
    sets = ["scheduler.use=fcfs", item] if "scheduler.use.x" in item else [item]
    assert said(*sets) == message


def test_keys_outside_of_any_section(tmp_path: Path) -> None:  # P4
    path = tmp_path / "engine.toml"
    path.write_text("tensor_parallel = 4\nscheduler = 3\n")
    assert said(path=path) == (
        f"the config has 2 faults:\n"
        f"  {path}: [scheduler]: must be a table, and is 3\n"
        f"  {path}: tensor_parallel: unknown key outside of any section. "
        f"Did you mean [parallel] tensor_parallel_size? {SECTIONS}"
    )


def test_suggestions_name_what_exists() -> None:
    """No suggestion for a foreign key leads to a key that is not there."""
    from enginebay.config import _faults, _vllm_flags

    for foreign, target in _vllm_flags.FOREIGN_KEYS.items():
        section, _, key = target.partition(".")
        assert section in EngineConfig.model_fields, foreign
        assert key in _faults.known_keys(section), foreign
    assert not _faults._LATER & set(EngineConfig.model_fields)

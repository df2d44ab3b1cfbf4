"""``from_vllm``: each flag that people use, what it comes to, and that what is printed is always a config."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.config import EngineConfig, Translation, from_vllm, load
from enginebay.config._vllm_flags import _KEYED, _KEYLESS, FLAGS, FOREIGN_REASONS, SHORT
from enginebay.errors import ConfigError

ALL = {"executor": {"uni", "mp", "ray", "external_launcher"}, "scheduler": {"fcfs", "priority"}}


def translated(line: str) -> Translation:
    return from_vllm(shlex.split(line), installed=ALL)


def keys(line: str) -> dict[str, Any]:
    """The keys that a command line comes to, as "section.key"."""
    table = tomllib.loads(translated(line).toml)
    return {f"{section}.{key}": value for section, pairs in table.items() for key, value in pairs.items()}


def refused(line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        translated(line)
    return str(caught.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--tokenizer tok", {"model.tokenizer": "tok"}),
        ("--served-model-name mine", {"model.served_model_name": "mine"}),
        ("--served-model-name mine also", {"model.served_model_name": "mine"}),
        ("--dtype bfloat16", {"model.dtype": "bfloat16"}),
        ("--dtype=half", {"model.dtype": "float16"}),
        ("--dtype float", {"model.dtype": "float32"}),
        ("--seed 7", {"model.seed": 7}),
        ("--seed None", {}),
        ("--max-model-len 4096", {"model.max_model_len": 4096}),
        ("--max_model_len=4k", {"model.max_model_len": 4000}),
        ("--max-model-len 4K", {"model.max_model_len": 4096}),
        ("--max-model-len 25.6k", {"model.max_model_len": 25600}),
        ("--max-model-len -1", {}),
        ("--max-model-len auto", {}),
        ("-tp 1", {"parallel.tensor_parallel_size": 1}),
        ("-tp=2", {"parallel.tensor_parallel_size": 2, "executor.use": "mp"}),
        ("--pipeline_parallel_size 2", {"parallel.pipeline_parallel_size": 2, "executor.use": "mp"}),
        (
            "-tp 2 --distributed-executor-backend ray",
            {"parallel.tensor_parallel_size": 2, "executor.use": "ray"},
        ),
        ("-dp 2", {"parallel.data_parallel_size": 2}),
        ("--distributed-executor-backend external_launcher", {"executor.use": "external_launcher"}),
        ("--distributed-executor-backend uni", {"executor.use": "uni"}),
        ("--distributed-executor-backend my.module.Executor", {}),
        ("--device cpu", {"device.kind": "cpu"}),
        ("--scheduling-policy priority", {"scheduler.use": "priority"}),
        ("--max-num-seqs 64", {"scheduler.max_num_seqs": 64}),
        ("--max-num-batched-tokens 8k", {"scheduler.max_num_batched_tokens": 8000}),
        ("--enable-chunked-prefill", {"scheduler.chunked_prefill": True}),
        ("--enable-chunked-prefill False", {"scheduler.chunked_prefill": False}),
        ("--enable-chunked-prefill=true", {"scheduler.chunked_prefill": True}),
        ("--no-enable-chunked-prefill", {"scheduler.chunked_prefill": False}),
        ("--long-prefill-token-threshold 512", {"scheduler.long_prefill_token_threshold": 512}),
        ("--async-scheduling", {"scheduler.overlap": "auto"}),
        ("--no-async-scheduling", {"scheduler.overlap": False}),
        ("--gpu-memory-utilization 0.9", {"cache.memory_utilization": 0.9}),
        ("--gpu_memory_utilization=1", {"cache.memory_utilization": 1.0}),
        ("--kv-cache-memory-bytes 1G", {"cache.memory_bytes": 1 << 30}),
        ("--num-gpu-blocks-override 512", {"cache.num_blocks": 512}),
        ("--gpu-memory-utilization 0.9 --num-gpu-blocks-override 512", {"cache.num_blocks": 512}),
        ("--gpu-memory-utilization 0.9 --kv-cache-memory-bytes 5m", {"cache.memory_bytes": 5_000_000}),
        ("--block-size 32", {"cache.block_size": 32}),
        ("--kv-cache-dtype auto", {"cache.dtype": "auto"}),
        ("--kv-cache-dtype fp8", {}),
        ("--enable-prefix-caching", {"cache.prefix_caching": True}),
        ("--no_enable_prefix_caching", {"cache.prefix_caching": False}),
        ("--prefix-caching-hash-algo sha256", {"cache.hash": "sha256"}),
        ("--prefix-caching-hash-algo builtin", {}),
        ("--otlp-traces-endpoint http://h:4318", {"telemetry.endpoint": "http://h:4318"}),
        ("--max-num-seqs 1 --max-num-seqs 2", {"scheduler.max_num_seqs": 2}),
        ("--enable-prefix-caching --no-enable-prefix-caching", {"cache.prefix_caching": False}),
        ("-O3 -O 3 -O.mode=3 -cc '{\"mode\": 3}' --compilation-config.mode 3", {}),
        ("--lora-modules a=b c=d --port 80 --api-key k1 k2 -q awq --trust-remote-code", {}),
        ('--speculative-config \'{"method": "ngram"}\' --hf-overrides={}', {}),
        ("--enforce-eager --disable-log-stats --swap-space 4 --cpu-offload-gb=2 --load-format auto", {}),
    ],
)
def test_flags(flags: str, expected: dict[str, Any]) -> None:
    assert keys(f"vllm serve m {flags}") == {"model.path": "m", **expected}


@pytest.mark.parametrize(
    "line",
    [
        "m --seed 1",
        "--seed 1 m",
        "--model m --seed=1",
        "serve m --seed 1",
        "vllm serve m --seed 1",
        "vllm serve --seed 1 --model=ignored m",
        "/opt/venv/bin/vllm serve m --seed 1",
        "CUDA_VISIBLE_DEVICES=0 VLLM_USE_V1=1 vllm serve m --seed 1",
        "python -m vllm.entrypoints.openai.api_server --model m --seed 1",
        "python3.11 -m vllm.entrypoints.cli.main serve m --seed 1",
        "'vllm serve m --seed 1'",
        "'vllm serve m \\\n    --seed 1\n'",
    ],
)
def test_the_ways_in_which_it_is_written(line: str) -> None:
    assert keys(line) == {"model.path": "m", "model.seed": 1}


def test_what_is_printed() -> None:
    line = "vllm serve org/model -tp 2 --dtype half --api-key hush --host 0.0.0.0 --port 80 --trust-remote-code -dp 2"
    translation = from_vllm(shlex.split(line), installed={"executor": {"uni"}, "scheduler": {"fcfs"}})
    assert translation == Translation(
        toml=(
            "# What a vLLM command line comes to. Look at it with:  enginebay check --config engine.toml\n"
            "\n"
            "[model]\n"
            'path = "org/model"  # MODEL; not a folder here; nothing is fetched from a hub: put the folder\'s path\n'
            'dtype = "float16"   # --dtype\n'
            "\n"
            "[parallel]\n"
            "tensor_parallel_size = 2  # -tp\n"
            "data_parallel_size = 2    # -dp\n"
            "\n"
            "[executor]\n"
            'use = "mp"  # vLLM\'s choice for several ranks on one host; not installed; installed: uni\n'
            "\n"
            "# Left out:\n"
            "# --api-key, --host, --port: [server] is not in this version, which serves no HTTP\n"
            "# --trust-remote-code: refused: enginebay runs no code that comes with a model\n"
        ),
        left_out=("--api-key", "--host", "--port", "--trust-remote-code"),
        missing=("executor 'mp'",),
    )


def test_a_command_line_without_a_model_says_what_runs_then() -> None:
    assert translated("--seed 1").toml.endswith("# MODEL: none is named, and the imported SmolLM2 is what runs then\n")


def test_a_folder_that_is_there_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert keys("vllm serve org/model") == {"model.path": str(tmp_path / "org" / "model")}
    assert "hub" not in translated("vllm serve org/model").toml


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "m --gpu-memory-utilisation 0.9",
            (
                "--gpu-memory-utilisation: no flag of `vllm serve` that enginebay knows. "
                "Did you mean '--gpu-memory-utilization'?"
            ),
        ),
        ("m --frobnicate", "--frobnicate: no flag of `vllm serve` that enginebay knows. Leave it out."),
        ("m -z", "-z: no flag of `vllm serve` that enginebay knows. Leave it out."),
        ("m --no-seed", "--no-seed: no flag of `vllm serve` that enginebay knows. Did you mean '--seed'?"),
        ("m --config c.yaml", "--config: vLLM's own config file is not read: write what it says as flags"),
        ("m --max-num-seqs", "--max-num-seqs: needs a value"),
        ("m --max-num-seqs --seed 1", "--max-num-seqs: needs a value"),
        ("m --no-async-scheduling=1", "--no-async-scheduling: takes no value"),
        ("m --max-num-seqs ٣", "--max-num-seqs: must be a whole number, and is '٣'"),
        ("m --max-model-len ٤k", "--max-model-len: must be a whole number, and is '٤k'"),
        ("m --max-num-seqs 4.5", "--max-num-seqs: must be a whole number, and is '4.5'"),
        ("m --max-model-len 4kk", "--max-model-len: must be a whole number, and is '4kk'"),
        ("m --max-model-len 1.5K", "--max-model-len: must be a whole number of K, and is '1.5K'"),
        ("m --max-model-len 1.00001k", "--max-model-len: must come to a whole number, and is '1.00001k'"),
        ("m --enable-prefix-caching=maybe", "--enable-prefix-caching: must be true or false, and is 'maybe'"),
        ("m --max-num-seqs 0", "--max-num-seqs: [scheduler] max_num_seqs: must be at least 1, and is 0"),
        (
            "m --gpu-memory-utilization 2",
            "--gpu-memory-utilization: [cache] memory_utilization: must be at most 1, and is 2.0",
        ),
        (
            "m --gpu-memory-utilization nan --seed -1",
            (
                "the command line has 2 faults:\n"
                "  --seed: [model] seed: must be at least 0, and is -1\n"
                "  --gpu-memory-utilization: [cache] memory_utilization: must be at most 1, and is nan"
            ),
        ),
        ("m n", "'n' stands alone: 'm' is the model already"),
        ("vllm bench throughput", "from-vllm translates `vllm serve`, and not `vllm bench`"),
        (
            "python serve.py m",
            ("from-vllm knows `vllm serve` and `python -m vllm.entrypoints.openai.api_server`, and no other program"),
        ),
    ],
)
def test_refusals(line: str, message: str) -> None:
    assert refused(line) == message


@pytest.mark.parametrize("words", [["m", "--" + "x\n" * 50_000], ["m", "n\x1b" * 50_000], ["vllm", "y\n" * 50_000]])
def test_a_refusal_is_one_line_whatever_was_written(words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_vllm(words)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 1000


def test_a_quoted_command_line_that_does_not_end() -> None:
    with pytest.raises(ConfigError, match="the command line cannot be taken apart: no closing quotation"):
        from_vllm(["vllm serve 'm"])


def test_bytes_that_are_no_text() -> None:
    for word in ("\udc80", "--served-model-name=\udc80"):
        with pytest.raises(ConfigError, match="holds bytes that are no UTF-8 text"):
            from_vllm(["m", "--served-model-name", word] if word == "\udc80" else ["m", word])


def test_no_value_gets_out_of_its_line() -> None:
    nasty = 'x"\n[cache]\nnum_blocks = 1 #\x7f\x00\\'
    found = from_vllm(["m", "--served-model-name", nasty, f"--api-key={nasty}", "--compilation-config.x\n[cache]", "3"])
    assert tomllib.loads(found.toml) == {"model": {"path": "m", "served_model_name": nasty}}


def test_the_table_is_sound() -> None:
    names = [flag.name for flag in _KEYED] + [name.rstrip("+!") for _, names in _KEYLESS for name in names.split()]
    assert len(names) == len(set(names)) == len(FLAGS)
    assert set(SHORT.values()) <= set(names)
    for flag in FLAGS.values():
        assert bool(flag.key) != bool(flag.reason), flag.name
        assert not flag.reason.endswith("."), flag.name
    assert "model" not in FOREIGN_REASONS


def _values(name: str) -> st.SearchStrategy[str]:
    plausible = [
        "1",
        "2",
        "16",
        "0.5",
        "auto",
        "4k",
        "float16",
        "fp8",
        "true",
        "sha256",
        "fcfs",
        "mp",
        '{"a": 1}',
        "x/y",
    ]
    return st.sampled_from(plausible) | st.text(max_size=12)


@st.composite
def _lines(draw: st.DrawFn) -> list[str]:
    """A command line of random flags, in random order and spelling, some of them twice."""
    words = ["vllm", "serve", draw(st.sampled_from(["m", "org/m", "/models/é"]))]
    for name in draw(st.lists(st.sampled_from(sorted(FLAGS)), max_size=12)):
        flag = FLAGS[name]
        spelt = name.replace("-", "_") if draw(st.booleans()) else name
        if flag.takes == "switch":
            words.append(f"--no-{spelt}" if draw(st.booleans()) else f"--{spelt}")
        elif draw(st.booleans()):
            words.append(f"--{spelt}={draw(_values(name))}")
        else:
            words += [f"--{spelt}", draw(_values(name))]
    return words


@settings(max_examples=300)
@given(_lines())
def test_any_flags_come_to_a_config_or_to_a_refusal_that_names_them(words: list[str]) -> None:
    try:
        found = from_vllm(words)
    except ConfigError as error:
        faults = str(error).splitlines()
        assert len(faults) == 1 or faults[0].startswith("the command line has")
        return
    config = load(tomllib.loads(found.toml), environ={}).config
    assert isinstance(config, EngineConfig)
    written = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("--")}
    for name in {name.removeprefix("no-") for name in written}:
        assert name in FLAGS
        assert name in found.toml.replace("_", "-"), f"{name} is neither a key nor left out"

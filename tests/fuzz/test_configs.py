"""Configs: engine.toml with the environment and ``--set`` over it, and the JSON files of a model folder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from enginebay.config import EngineConfig, load
from enginebay.config._bounds import MAX_FAULTS
from enginebay.errors import ConfigError, ModelError
from enginebay.models import read_model_info
from support.fuzzing import NUMBERS, SHORT, SOAK, TEXTS, Tally, fuzz, mutate_bytes, mutate_json

TOML = b"""[model]
path = "m"
dtype = "bfloat16"
seed = 3
[scheduler]
use = "fcfs"
max_num_seqs = 16
watermark = 0.01
[scheduler.options]
a = [1, 2.5, {b = "x"}]
[cache]
block_size = 16
num_blocks = 100
[deadlines]
step = 10
[telemetry]
step_every = 5
[extensions.x]
y = true
"""
BOMBS = (
    *(
        b"a." * 800 + b"a = 1",
        b"a = " + b"[" * 800,
        b"a = " + b"{a=" * 800,
        b"[" + b"a." * 800 + b"a]",
        b"\xff",
        b"\0",
    ),
    *(b"[model]\nseed = 0x" + b"f" * 5000, b"[model]\nseed = " + b"9" * 5000, b"[deadlines]\nstep = 0x" + b"f" * 5000),
    *(
        b'"' + b"k" * 5000 + b'" = 1',
        b'"a\\u001b[31m\\n\\u202e" = 1',
        b"[deadlines]\nstep = nan\ncall = inf\nstart = -0.0",
    ),
    b"".join(b"[k%d]\nx = 1\n" % number for number in range(200)),
)
KEYS = [
    f"{section}.{key}" for section in EngineConfig.model_fields for key in ("use", "path", "seed", "options.a", "step")
]
KEYS += [
    "cache.block_size",
    "cache.num_blocks",
    "cache.memory_bytes",
    "model.dtype",
    "device.ids",
    "x",
    "",
    "a." * 50,
    '"',
]
VALUES = (*("1", "true", "nan", "[1, 2]", "{a = 1}", "[" * 300, "0x" + "f" * 300, "auto", "1979-05-27"), *TEXTS)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,
    "vocab_size": 4,
    "eos_token_id": [1, 2],
    "dtype": "float32",
    "rope_parameters": {"rope_type": "llama3", "factor": 8.0},
    "text_config": {"vocab_size": 4},
}
GENERATION: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "repetition_penalty": 1.1, "suppress_tokens": [3]}
ENGINE_DEPTHS = {
    "bounds": "nested|beyond 64 bits|parts; at most|more than 1024 KiB",
    "toml": "not TOML|not UTF-8|Exceeds the limit",
    "many": "the config has",
    "key": "unknown|names no section|there is no value|no table",
    "value": "must be|say the same",
}
MODEL_DEPTHS = {
    "json": "is not valid JSON|holds no JSON object|names no architecture",
    "number": "64 bits|finite|nested",
    "field": "no usable|model_type|num_hidden_layers|text may have",
}


def _engine(chance: random.Random, path: Path) -> str | None:
    toml = TOML
    act = chance.random()
    if act < 0.15:
        toml = mutate_bytes(chance, toml)
    elif act < 0.2:
        toml = chance.choice((toml, b"")) + chance.choice(BOMBS)
    elif act < 0.6:  # one line's value
        lines = toml.split(b"\n")
        at = chance.randrange(len(lines))
        key, equals, _ = lines[at].partition(b" = ")
        value = chance.choice((*map(repr, NUMBERS), *map(json.dumps, TEXTS), "[[1]]", "{}", "true", "12:00:00"))
        lines[at] = key + equals + value.encode() if equals else chance.choice((b"", b"[modle]", lines[at - 1]))
        toml = b"\n".join(lines)
    path.write_bytes(toml)
    sets = [f"{chance.choice(KEYS)}={chance.choice(VALUES)}" for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    names = ("__".join(chance.choice(KEYS).upper().split(".")) for _ in range(chance.choice((0, 0, 0, 1, 3))))
    environ = {f"ENGINEBAY__{name}": chance.choice(VALUES) for name in names}
    resolved = load(path, sets=sets, environ=environ)
    resolved.config.model_dump_json()
    return "loaded"


def _model(chance: random.Random, folder: Path) -> str | None:
    for name, tree in (("config.json", CONFIG), ("generation_config.json", GENERATION)):
        for _ in range(chance.choice((0, 0, 1, 2))):
            tree = mutate_json(chance, tree, pool=NUMBERS)
        raw = json.dumps(tree).encode()
        act = chance.random()
        if act < 0.05:
            raw = mutate_bytes(chance, raw)
        elif act < 0.07:
            deep = b'{"a":' * 500 + b"1" + b"}" * 500
            raw = chance.choice((b"[" * 50_000, b"", b"\xff", deep, b'{"a":' + b"9" * 5000 + b"}", b"NaN", b"{}" * 2))
        (folder / name).write_bytes(raw)
    info = read_model_info(folder, needs_tokenizer=False)
    assert info.vocab_size > 0
    assert json.dumps(info.ignored_generation).isprintable()
    return "read"


def _engine_fuzz(path: Path, count: int, seed: int) -> Tally:
    return fuzz(
        "engine configs",
        lambda chance: _engine(chance, path),
        count=count,
        seed=seed,
        errors=(ConfigError,),
        depths=ENGINE_DEPTHS,
        lines=MAX_FAULTS + 2,
    )


def _model_fuzz(folder: Path, count: int, seed: int) -> Tally:
    folder.mkdir()
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return fuzz(
        "model configs",
        lambda chance: _model(chance, folder),
        count=count,
        seed=seed,
        errors=(ModelError,),
        depths=MODEL_DEPTHS,
    )


def _check_engine(tally: Tally) -> None:
    shares = {"loaded": 0.1, "value": 0.05, "key": 0.05, "many": 0.05, "toml": 0.02, "bounds": 0.005}
    for label, least in shares.items():
        assert tally.share(label) >= least, label


def _check_model(tally: Tally) -> None:
    for label, least in {"read": 0.2, "json": 0.02, "number": 0.01, "field": 0.05}.items():
        assert tally.share(label) >= least, label


def test_engine_configs(tmp_path: Path) -> None:
    _check_engine(_engine_fuzz(tmp_path / "engine.toml", SHORT, 1))


def test_model_configs(tmp_path: Path) -> None:
    _check_model(_model_fuzz(tmp_path / "model", SHORT, 1))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_engine_configs(tmp_path: Path) -> None:
    _check_engine(_engine_fuzz(tmp_path / "engine.toml", SOAK, 2))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_model_configs(tmp_path: Path) -> None:
    _check_model(_model_fuzz(tmp_path / "model", SOAK, 2))

"""Converted weights, configs and tokenizers are those of transformers' own GGUF import, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from safetensors.torch import load_file

from enginebay.models._convert import _rounded, convert
from support.tiny_gguf import write_gguf

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _converted(gguf: Path, folder: Path, dtype: str = "float32") -> dict[str, torch.Tensor]:
    folder.mkdir()
    convert(gguf, folder, dtype, lambda done, total: None)
    tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return tensors


def _transformers_import(gguf: Path, folder: Path | None = None) -> dict[str, torch.Tensor]:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # reading a large GGUF file's config takes transformers long: ``folder`` has one already
    config = (
        AutoConfig.from_pretrained(folder) if folder else AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors: dict[str, torch.Tensor] = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)[
        "tensors"
    ]
    return tensors


def _assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    assert sorted(ours) == sorted(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, theirs[name].to(dtype)), name


def test_smollm2_is_bit_equal_to_transformers_import(smollm2_gguf: Path, tmp_path: Path) -> None:
    ours = _converted(smollm2_gguf, tmp_path / "out")
    _assert_equal(ours, _transformers_import(smollm2_gguf, tmp_path / "out"), torch.float32)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_1], ids=lambda k: k.name)
def test_every_kind_of_weights(kind: Kind, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", kind=kind)
    _assert_equal(_converted(gguf, tmp_path / "out"), _transformers_import(gguf), torch.float32)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_architectures_load_in_transformers(architecture: str, dtype: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    gguf = write_gguf(tmp_path / "m.gguf", architecture=architecture, tied=architecture != "qwen2", kind=Kind.Q8_0)
    ours = _converted(gguf, tmp_path / "out", dtype)
    _assert_equal(ours, _transformers_import(gguf), DTYPES[dtype])
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert model.dtype == DTYPES[dtype]
    assert {name: list(found) for name, found in report.items() if found} == {}
    assert model.config.architectures == [type(model).__name__]


def test_rotary_bias_is_put_back_in_order(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", bias=True)
    ours = _converted(gguf, tmp_path / "out")
    stored = {t.name: torch.from_numpy(t.data.copy()) for t in GGUFReader(gguf).tensors}
    for ours_name, stored_name in (("q_proj", "blk.0.attn_q"), ("k_proj", "blk.0.attn_k")):
        weight = ours[f"model.layers.0.self_attn.{ours_name}.weight"]
        # transformers drops these biases: the order is that of the weights' rows, which are compared with its own above
        order = [int((stored[f"{stored_name}.weight"] == row).all(dim=1).nonzero()) for row in weight]
        assert order != sorted(order)
        assert torch.equal(ours[f"model.layers.0.self_attn.{ours_name}.bias"], stored[f"{stored_name}.bias"][order])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["attention_bias"] is True


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_make_no_difference(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", kind=Kind.Q8_0)
    whole = _converted(gguf, tmp_path / "whole")
    monkeypatch.setattr("enginebay.models._convert._CHUNK_ELEMENTS", chunk * 64)
    _assert_equal(_converted(gguf, tmp_path / "pieces"), whole, torch.float32)


def test_rounding_is_torchs_bit_for_bit() -> None:
    bits = np.random.default_rng(3).integers(0, 2**32, 200_000, dtype=np.uint32)
    edge = [0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x3F808000, 0x3F818000, 0x00000001, 0x80000000]
    values = np.concatenate([bits, np.array(edge, dtype=np.uint32)]).view(np.float32)
    unused: Any = None
    ours = _rounded(values, "bfloat16", unused, unused)
    theirs = torch.from_numpy(values.copy()).bfloat16()
    ours_back = torch.from_numpy(ours.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours_back.view(torch.int16)[~theirs.isnan()], theirs.view(torch.int16)[~theirs.isnan()])
    assert bool(ours_back[theirs.isnan()].isnan().all())


def test_out_of_range_for_float16_is_refused(tmp_path: Path) -> None:
    from enginebay.errors import ModelError
    from enginebay.models._architecture import PlacedTensor
    from enginebay.models._gguf import GgufTensor

    class File:
        path = Path("m.gguf")

    source = GgufTensor(name="output.weight", shape=(1,), kind="F32", start=0, size=4)
    with pytest.raises(ModelError) as caught:
        _rounded(
            np.array([1e6], dtype=np.float32),
            "float16",
            File(),  # type: ignore[arg-type]  # only the path is read
            PlacedTensor(name="lm_head.weight", source=source),
        )
    assert str(caught.value) == "m.gguf: tensor 'output.weight' is out of float16's range; use bfloat16"


def test_config_says_what_the_metadata_says(tmp_path: Path) -> None:
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "tokenizer.ggml.eot_token_id": 0,
    }
    gguf = write_gguf(tmp_path / "m.gguf", metadata=scaling, tied=False)
    _converted(gguf, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
    }
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 0]}


def test_llama3_rope_is_recognised_from_its_factors(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from enginebay.models._gguf import GgufFile, GgufTensor
    from enginebay.models._metadata import Metadata
    from enginebay.models._rope import rope_parameters

    rule = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](
        LlamaConfig(head_dim=128, max_position_embeddings=131072, rope_parameters=dict(rule)), "cpu"
    )
    plain = 500000.0 ** -(torch.arange(0, 128, 2) / 128)
    factors = (plain / scaled).numpy().astype(np.float32)
    gguf = write_gguf(tmp_path / "m.gguf", metadata={"llama.rope.freq_base": 500000.0})
    with GgufFile(gguf) as file:
        file.tensors["rope_freqs.weight"] = GgufTensor(name="", shape=(64,), kind="F32", start=0, size=256)
        file.read = lambda start, size: factors.view(np.uint8)  # type: ignore[method-assign]  # in place of a file
        assert rope_parameters(Metadata(file)) == rule

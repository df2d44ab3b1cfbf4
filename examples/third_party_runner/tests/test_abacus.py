"""The answers, the cache that checks its users, and everything that enginebay asks of a runner."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from enginebay_abacus.memory import CheckedMemory
from enginebay_abacus.runner import answer, words_of
from safetensors.numpy import save_file

from enginebay.testing import RunnerDriver, RunnerSuite, start_runner

VOCAB = 1000


def make_folder(folder: Path) -> Path:
    """The least that enginebay takes for a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["AbacusForCausalLM"],
        "model_type": "abacus",
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file({"nothing": np.zeros(1, dtype=np.float32)}, folder / "model.safetensors")
    return folder


class TestConformance(RunnerSuite):
    """enginebay's own suite, through the installed entry point."""

    name = "abacus"

    @pytest.fixture
    def model_folder(self, tmp_path: Path) -> Path:
        return make_folder(tmp_path / "model")


def test_the_answer_is_the_one_reckoned_beforehand(tmp_path: Path) -> None:
    prompts = [[1, 2, 3], [5] * 40, list(range(100))]
    with start_runner("abacus", make_folder(tmp_path / "model")) as started:
        driver = RunnerDriver(started.runner, num_blocks=64, block_size=16, shuffle=1)
        for index, prompt in enumerate(prompts):
            driver.add(str(index), prompt)
        answers = list(driver.run(chunk=6).values())
    assert answers == [answer(prompt, 8, VOCAB) for prompt in prompts]


def test_reading_what_nobody_wrote_is_an_error() -> None:
    memory = CheckedMemory(num_blocks=4, block_size=4)
    memory.write("a", [2, 1], 0, words_of([7] * 5, 0))
    assert (memory.read("a", [2, 1], 5) == words_of([7] * 5, 0)).all()
    with pytest.raises(AssertionError, match="a reads position 5 in block 1, which nobody wrote"):
        memory.read("a", [2, 1], 6)


def test_writing_into_the_block_of_another_live_request_is_an_error() -> None:
    memory = CheckedMemory(num_blocks=4, block_size=4)
    memory.write("a", [2], 0, words_of([7], 0))
    with pytest.raises(AssertionError, match="b writes into block 2, which is a's, and a is live"):
        memory.write("b", [2], 0, words_of([8], 0))
    memory.release("a")
    memory.write("b", [2], 0, words_of([8], 0))


def test_entering_a_block_forgets_what_stood_in_it() -> None:
    memory = CheckedMemory(num_blocks=4, block_size=4)
    memory.write("a", [2], 0, words_of([7] * 4, 0))
    memory.release("a")
    memory.write("b", [2], 0, words_of([8], 0))
    with pytest.raises(AssertionError, match="b reads position 1 in block 2"):
        memory.read("b", [2], 2)

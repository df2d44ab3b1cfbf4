"""Runner v2 with ``kv_cache = "int8"``: the suite of every runner, its tokens, its memory, and what ``check`` says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from enginebay.interfaces import ModelRunner
from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, RunnerSuite, start_runner
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.plugin import enginebay_register_runners

INT8 = {"kv_cache": "int8", "compile": "wait"}
MODEL = {"compile": "wait"}
NUM_BLOCKS = 96
PROMPTS = {"a": [5, 3, 8, 1], "b": list(range(1, 40))}

Tiny = Callable[[str], Path]


class TestInt8Cache(RunnerSuite):
    name = "v2"
    options: ClassVar = INT8

    @pytest.fixture
    def model_folder(self, tiny: Tiny) -> Path:
        return tiny("llama")


GENERATIONS = itertools.count(1)


def answers(runner: ModelRunner[Any]) -> dict[str, list[int]]:
    driver = RunnerDriver(runner, num_blocks=NUM_BLOCKS, block_size=16, generation=next(GENERATIONS))
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt, SamplingParams(max_tokens=8, ignore_eos=True))
    return driver.run()


def of_folder(folder: Path, options: Mapping[str, Any], dtype: str = "float32") -> dict[str, list[int]]:
    with start_runner("v2", folder, num_blocks=NUM_BLOCKS, options=options, dtype=dtype) as started:
        return answers(started.runner)


@pytest.mark.parametrize("family", ["llama", "qwen2-mixed-window"])
def test_the_kernels_and_the_python_code_give_the_same_tokens(tiny: Tiny, family: str) -> None:
    assert of_folder(tiny(family), INT8) == of_folder(tiny(family), INT8 | {"compile": "off"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_are_near_those_of_the_model(tiny: Tiny, dtype: str) -> None:
    told = []
    for options in (INT8, MODEL):
        with start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=options, dtype=dtype) as started:
            driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
            driver.add("b", PROMPTS["b"], SamplingParams(max_tokens=1, prompt_logprobs=0))
            driver.run()
            told.append([entry.logprob for part in driver.prompt_logprobs["b"] for entry in part.entries])
    int8, model = torch.tensor(told)
    assert 0 < (int8 - model).abs().mean() < 0.05  # of about 7


@pytest.mark.parametrize("family", ["llama", "qwen2-mixed-window"])
def test_a_block_takes_what_the_spec_says(tiny: Tiny, family: str) -> None:
    def sizes(options: Mapping[str, Any]) -> tuple[int, int]:
        with start_runner("v2", tiny(family), num_blocks=NUM_BLOCKS, options=options, dtype="bfloat16") as started:
            spec = started.runner.kv_cache_spec()
            pages = {one.data_ptr(): one.nbytes for pair in started.runner._pages for one in pair}  # type: ignore[attr-defined]  # what is there
            blocks = NUM_BLOCKS * started.groups
            assert sum(pages.values()) == blocks * spec.cost_per_block
            assert started.runner.in_force()["kv_cache"].endswith("; int8") == (options == INT8)
            shape = started.runner.prepared.shapes[0]  # type: ignore[attr-defined]  # as above
            return spec.cost_per_block, shape.key_width

    (int8, width), (model, _) = sizes(INT8), sizes(MODEL)
    filled = -(-width // 32) * 32 + 4 + -(-width // 16) * 16 + 4  # bytes of a token's key and value
    assert int8 * 4 * width == model * filled


def test_sleep_gives_the_cache_back_and_waking_another(tiny: Tiny) -> None:
    with start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=INT8) as started:
        before = answers(started.runner)
        started.runner.sleep(1)
        started.runner.wake_up(frozenset({"weights", "kv_cache"}))
        assert answers(started.runner) == before


def test_check_says_that_the_cache_is_in_int8() -> None:
    (plugin,) = enginebay_register_runners()
    told = plugin.foresees(RunnerV2Options(kv_cache="int8"))
    assert told["kv_cache"] == ("int8, a scale for each token of a head", "[runner.options] kv_cache")
    assert "kv_cache" not in plugin.foresees(RunnerV2Options())

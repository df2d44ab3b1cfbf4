"""What runner v1 does beside the tokens: its cache, its faults, its larger steps, and what it leaves behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from enginebay.messages import KVCacheGroup, KVCacheSpec, SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from enginebay.worker.probing.shapes import LayerShape, kv_words

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def test_the_cache_is_what_the_probe_saw(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("qwen3"), block_size=32) as started:
        spec = started.runner.kv_cache_spec()
    one_block = 3 * 2 * 32 * 2 * 16 * 4  # layers, keys and values, tokens, KV heads, width, bytes
    assert spec == KVCacheSpec(groups=(KVCacheGroup(layers=(0, 1, 2), block_size=32, bytes_per_block=one_block),))


def test_nan_logits_are_the_fault_of_one_request(tiny: Callable[[str], Path]) -> None:
    good, bad = [3, 4, 5, 6], [3, 4, 77, 6]
    with start_runner("v1", tiny("qwen3")) as started:
        model = started.runner._model  # type: ignore[attr-defined]  # the test breaks the model from within
        driver = RunnerDriver(started.runner, num_blocks=8, block_size=16)
        driver.add("alone", good, PARAMS)
        expected = driver.run()["alone"]
        driver.step({})
        embedding = model.model.embed_tokens
        embedding.weight = torch.nn.Parameter(embedding.weight.clone(), requires_grad=False)
        embedding.weight[77] = torch.nan
        driver.add("good", good, PARAMS)
        driver.add("bad", bad, PARAMS)
        assert driver.run(["good", "bad"]) == {"good": expected, "bad": []}
        assert driver.faults == {"bad": "the model's logits for token 4 are NaN: no token can be drawn"}
        driver.abort("bad")
        driver.add("after", good, PARAMS)  # in the blocks that held NaN
        assert driver.run(["after"])["after"] == expected


def test_profile_run_takes_the_largest_step_and_leaves_nothing(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("mistral-window"), max_num_seqs=5, max_num_batched_tokens=640) as started:
        runner = started.runner
        seen = []
        model = runner._model  # type: ignore[attr-defined]  # the test looks inside
        handle = model.register_forward_hook(lambda _m, _a, kw, out: seen.append(out.logits.shape), with_kwargs=True)
        runner.profile_run()
        handle.remove()
        # what draws, proposals among it, then of the longest prompt as many rows as are looked at together
        assert [tuple(shape) for shape in seen] == [(1, 5 * 65, 199), (1, 64, 199)]
        assert runner._cache is None  # type: ignore[attr-defined]  # as above


def test_close_gives_the_memory_back(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("llama")) as started:
        runner = started.runner
        held = [weakref.ref(runner._model), weakref.ref(runner._cache.pages[0][0])]  # type: ignore[attr-defined]  # as above
        runner.close()
        gc.collect()
        assert [reference() for reference in held] == [None, None]
        runner.close()  # once more is harmless: start_runner closes too


def test_what_is_in_force(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("llama")) as started:
        assert started.runner.in_force() == {
            "attention": "paged_sdpa",
            "execution": "eager",
            "kv_cache": "3 layers of 2 KV heads, k 8, v 8",
        }
        assert started.capabilities.attention == "paged_sdpa"


def test_the_cache_in_words() -> None:
    shapes = (LayerShape(9, 3, 64, 64, 512),) * 5 + (LayerShape(9, 3, 64, 64, None), LayerShape(9, 1, 96, 64, None))
    assert kv_words(shapes) == (
        "6 layers of 3 KV heads, k 64, v 64; 1 layer of 1 KV head, k 96, v 64; window 512 in 5 of 7 layers"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs(tiny: Callable[[str], Path], dtype: str) -> None:
    with start_runner("v1", tiny("llama"), dtype=dtype) as started:
        assert str(started.runner._model.dtype) == f"torch.{dtype}"  # type: ignore[attr-defined]  # as above
        driver = RunnerDriver(started.runner, num_blocks=16, block_size=16)
        driver.add("a", list(range(20)), PARAMS)
        driver.add("b", [9] * 40, PARAMS)
        assert {key: len(tokens) for key, tokens in driver.run(chunk=16).items()} == {"a": 6, "b": 6}


def test_torch_keeps_its_global_state(tiny: Callable[[str], Path]) -> None:
    """Threads, default dtype, default device and gradients are the worker's business or the user's."""
    before = (torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
    with start_runner("v1", tiny("llama"), dtype="bfloat16") as started:
        driver = RunnerDriver(started.runner, num_blocks=16, block_size=16)
        driver.add("a", [1, 2, 3], PARAMS)
        driver.run()
        now = (torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
    assert now == before
    assert not torch.is_inference_mode_enabled()

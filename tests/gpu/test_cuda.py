"""The CUDA lines for real: the device's verbs, the worker's order of start, and tokens equal to the CPU's reference.

Run with ``-m gpu`` on a machine that has a CUDA device; without one these tests fail, since a skip would hide it.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from random import Random

import pytest
import torch

from enginebay import LLM, SamplingParams
from enginebay.telemetry import read_spans
from enginebay.worker.device import TorchDevice
from support.tiny_models import FAMILIES, VOCAB, make_model, reference

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NEW_TOKENS = 16


def prompts() -> list[list[int]]:
    random = Random(5)
    return [[random.randrange(VOCAB) for _ in range(length)] for length in (1, 7, 16, 33, 64, 100)]


def engine(folder: Path, *sets: str) -> LLM:
    return LLM(sets=[f"model.path={folder}", "device.kind=cuda", "cache.memory_utilization=0.05", *sets])


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_tokens_equal_generate(family: str, tmp_path: Path) -> None:
    """fp32, greedy: all at once, and in chunks under preemption."""
    folder = make_model(tmp_path / "model", family)
    expected = reference(folder, prompts(), NEW_TOKENS)
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    with engine(folder, "model.dtype=float32") as llm:
        assert [list(c.token_ids) for c in llm.generate(prompts(), params)] == expected
        assert llm.in_force["device"] == "cuda:0"
    tight = ["cache.num_blocks=12", "scheduler.max_num_batched_tokens=24"]
    with LLM(sets=[f"model.path={folder}", "device.kind=cuda", "model.dtype=float32", *tight]) as llm:
        assert [list(c.token_ids) for c in llm.generate(prompts(), params)] == expected
        assert llm.stats().scheduler.preemptions > 0


def test_seeded_draws_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama")
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, temperature=1.0, top_k=50, top_p=0.9, seed=11)
    with engine(folder, "model.dtype=float32") as llm:
        together = [list(c.token_ids) for c in llm.generate(prompts(), params)]
        alone = [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts()]
    assert together == alone


def test_half_precisions_answer(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "qwen3")
    for dtype in ("bfloat16", "float16"):
        with engine(folder, f"model.dtype={dtype}") as llm:
            [answer] = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=8, ignore_eos=True))
            assert len(answer.token_ids) == 8


def test_an_accelerator_is_taken_by_itself_and_its_memory_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    folder, trace = make_model(tmp_path / "model", "llama"), tmp_path / "trace.jsonl"
    sets = [f"model.path={folder}", "cache.memory_utilization=0.2", f"telemetry.file={trace}"]
    with LLM(sets=sets) as llm:
        assert llm.in_force["device"] == "cuda:0"
        held = torch.cuda.memory_allocated()
        assert "NCCL_ASYNC_ERROR_HANDLING" not in os.environ
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4))
    gc.collect()
    total = torch.cuda.get_device_properties(0).total_memory
    assert 0.1 * total < held <= 0.2 * total, "the cache fills what utilisation allows"
    assert torch.cuda.memory_allocated() < 64 << 20
    [device] = [span for span in read_spans(trace) if span.name == "worker.init_device"]
    assert device.attributes["enginebay.device"] == "cuda:0"


def test_more_than_is_free_is_refused_with_all_the_terms(tmp_path: Path) -> None:
    from enginebay.errors import OutOfMemory

    folder = make_model(tmp_path / "model", "llama")
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(int(free * 0.5), dtype=torch.uint8, device="cuda")
    try:
        with pytest.raises(OutOfMemory, match="memory_utilization"):
            LLM(sets=[f"model.path={folder}", "device.kind=cuda", "cache.memory_utilization=0.9"])
    finally:
        del hog
        torch.cuda.empty_cache()


def test_the_device_tells_the_truth() -> None:
    device = TorchDevice("cuda")
    assert device.unavailable_reason() is None
    assert device.count() == torch.cuda.device_count()
    device.set_current(0)
    before = device.memory()
    device.reset_peak()
    block = torch.empty(256 << 20, dtype=torch.uint8, device=device.torch_device)
    device.synchronize()
    during = device.memory()
    del block
    device.empty_cache()
    after = device.memory()
    assert during.allocated - before.allocated == 256 << 20
    assert during.peak >= 256 << 20
    assert before.free - during.free >= 256 << 20
    assert after.allocated == before.allocated
    assert after.reserved <= before.reserved
    assert device.name() == "cuda:0"
    assert device.collective_backend() == "nccl"
    assert all(device.supports_dtype(dtype) for dtype in ("float32", "bfloat16", "float16"))
    assert not device.supports_dtype("float8")

"""Runner v1 on a CUDA device: the same code, held against transformers on the CPU. Run with ``-m gpu``."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from support.tiny_models import FAMILIES, VOCAB, make_model, reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_tokens_equal_generate(tmp_path: Path, family: str) -> None:
    """fp32 with full-precision matrix products, which is torch's default."""
    random = Random(1)
    prompts = [[random.randrange(VOCAB) for _ in range(length)] for length in (1, 5, 16, 33, 100)]
    folder = make_model(tmp_path / "model", family)
    expected = reference(folder, prompts, 20)
    with start_runner("v1", folder, num_blocks=96, kind="cuda") as started:
        started.runner.profile_run()
        started.runner.initialize_kv_cache(96)
        for chunk in (None, 7):
            driver = RunnerDriver(started.runner, num_blocks=96, block_size=16, shuffle=1)
            for index, prompt in enumerate(prompts):
                driver.add(str(index), prompt, SamplingParams(max_tokens=20, ignore_eos=True))
            assert list(driver.run(chunk=chunk).values()) == expected
            driver.step({})

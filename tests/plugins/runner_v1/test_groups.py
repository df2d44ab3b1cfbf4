"""KV groups: how layers are dealt out to them, what a block costs, and that blocks out of a window are never read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from enginebay.messages import KVCacheGroup, SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from enginebay.worker.probing.groups import MAX_GROUPS, LayerGroup, arrange, kv_spec, places
from enginebay.worker.probing.shapes import LayerShape
from support.parity import Reference
from support.tiny_families import VOCAB, WINDOW

SIZE = 4
PROMPTS = [
    [(7 * index + 3 * token + token * token) % VOCAB for token in range(length)]
    for index, length in enumerate((5 * WINDOW + 3, 2, WINDOW, 3 * WINDOW + 1))
]
PARAMS = SamplingParams(max_tokens=2 * WINDOW, ignore_eos=True)


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ([None] * 30, [30]),
        ([512] * 26, [26]),
        ([512, None] * 13, [13, 13]),
        ([512, 512, None], [1, 1, 1]),
        (([512] * 5 + [None]) * 4 + [512] * 2, [4, 4, 4, 4, 4, 4, 2]),
        (([1024] * 5 + [None]) * 10 + [1024] * 2, [10, 13, 13, 13, 13]),
        ([None, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 9000], [1] * 10),
    ],
)
def test_layers_are_dealt_out_evenly(windows: list[int | None], sizes: list[int]) -> None:
    groups = arrange(windows, range(len(windows)))
    assert [len(group.layers) for group in groups] == sizes
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert all({windows[layer] for layer in group.layers} == {group.window} for group in groups)
    assert len(groups) <= max(MAX_GROUPS, len(set(windows)))
    seen = [group.window or 0 for group in groups]
    assert seen == sorted(seen), "those that see everything come first"


def test_every_stage_has_the_same_groups_and_its_own_layers() -> None:
    windows = [None, 8, None, None, 8, 8]
    first, second, third = (arrange(windows, own) for own in (range(2), range(2, 4), range(4, 6)))
    assert [group.window for group in first] == [group.window for group in second] == [group.window for group in third]
    assert first == (LayerGroup(None, (0,)), LayerGroup(8, (1,)))
    assert second == (LayerGroup(None, (0, 1)), LayerGroup(8, ()))
    assert third == (LayerGroup(None, ()), LayerGroup(8, (0, 1)))


def test_layers_of_one_shape_share_memory_and_others_do_not() -> None:
    wide, narrow = LayerShape(8, 4, 16, 16, None), LayerShape(8, 1, 16, 8, 12)
    shapes = (wide, wide, narrow, wide)
    groups = (LayerGroup(None, (0, 1)), LayerGroup(12, (2, 3)))
    assert [place.layers for place in places(shapes, groups)] == [(0, 3), (1,), (2,)]
    spec = kv_spec(shapes, groups, block_size=16, element_size=2, first=10)
    wide_bytes, narrow_bytes = 16 * 4 * 32 * 2, 16 * 24 * 2
    assert spec.groups == (
        KVCacheGroup(layers=(10, 11), block_size=16, bytes_per_block=2 * wide_bytes),
        KVCacheGroup(
            layers=(12, 13), block_size=16, bytes_per_block=wide_bytes + narrow_bytes, kind="sliding_window", window=12
        ),
    )
    assert spec.cost_per_block == 2 * wide_bytes + narrow_bytes


def test_a_window_that_no_text_outgrows_makes_no_group(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("llama")) as started:
        assert [group.kind for group in started.runner.kv_cache_spec().groups] == ["full"]
    with start_runner("v1", tiny("gemma2")) as started:
        kinds = [(group.kind, group.window) for group in started.runner.kv_cache_spec().groups]
        assert kinds == [("full", None), ("sliding_window", WINDOW), ("sliding_window", WINDOW)]


class Poisoned(RunnerDriver):
    """Before each step, everything that no request holds is NaN: whoever reads it, under whatever mask, shows it."""

    def step(self, counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        free = torch.tensor([0, *self._free])
        for layer in self.runner._cache.pages:  # type: ignore[attr-defined]  # the test looks inside
            for pages in layer:
                pages[free] = torch.nan
        return super().step(counts)


def check_tokens(
    folder: Path,
    reference: Reference,
    cuts: tuple[tuple[int | None, int | None], ...],
    *,
    batch_invariant: bool = False,
) -> None:
    """All prompts at once, in chunks of a size and blocks in an order; in chunks the first is preempted once."""
    with start_runner("v1", folder, num_blocks=80, block_size=SIZE, batch_invariant=batch_invariant) as started:
        for generation, (chunk, shuffle) in enumerate(cuts):
            driver = Poisoned(
                started.runner, num_blocks=80, block_size=SIZE, trim=True, shuffle=shuffle, generation=generation
            )
            for index, prompt in enumerate(PROMPTS):
                driver.add(str(index), prompt, PARAMS)
            if chunk:
                for _ in range(len(PROMPTS[0]) // chunk):
                    driver.step({"0": chunk})
                driver.preempt("0")
            tokens = driver.run(chunk=chunk)
            verdict = reference.compare(PROMPTS, [tokens[str(index)] for index in range(len(PROMPTS))])
            assert not verdict.faults, verdict.faults
            assert len(driver._free) == 80 * len(driver._windows) - 1, "every block came back"


@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "gpt-oss"])
def test_tokens_are_transformers_own_while_blocks_come_back(
    tiny: Callable[[str], Path], reference_of: Callable[[str], Reference], family: str
) -> None:
    check_tokens(tiny(family), reference_of(family), ((7, 3),))


def test_they_are_with_a_step_independent_of_the_batch(
    tiny: Callable[[str], Path], reference_of: Callable[[str], Reference]
) -> None:
    check_tokens(tiny("gemma2"), reference_of("gemma2"), ((WINDOW + 1, 4),), batch_invariant=True)


@pytest.mark.soak
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "gemma3", "gpt-oss", "qwen2-mixed-window"])
def test_however_prompts_are_cut(
    tiny: Callable[[str], Path], reference_of: Callable[[str], Reference], family: str, batch_invariant: bool
) -> None:
    cuts = ((None, None), (7, 3), (WINDOW + 1, 4), (1, 5))
    check_tokens(tiny(family), reference_of(family), cuts, batch_invariant=batch_invariant)


def test_a_request_holds_no_more_than_its_window(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("mistral-window"), num_blocks=80, block_size=SIZE) as started:
        driver = Poisoned(started.runner, num_blocks=80, block_size=SIZE, trim=True)
        driver.add("long", PROMPTS[0], SamplingParams(max_tokens=100, ignore_eos=True))
        held = []
        for count in [8] * 7 + [len(PROMPTS[0]) - 56] + [1] * 99:
            driver.step({"long": count})
            held.append(79 - len(driver._free))
        assert max(held[8:]) == -(-(WINDOW - 1) // SIZE) + 1

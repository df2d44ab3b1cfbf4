"""Runner v2 with ``weights = "int8"``: the suite of every runner, and its weights through updates, sleep and peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from enginebay.errors import StartFailed
from enginebay.interfaces import ModelRunner
from enginebay.messages import FinishWeightUpdate, SamplingParams, StartWeightUpdate
from enginebay.testing import RunnerDriver, RunnerSuite, start_runner
from enginebay.worker import peer
from enginebay_runner_v2.options import RunnerV2Options
from support.other_weights import redraw

INT8 = {"weights": "int8", "compile": "wait"}
NUM_BLOCKS = 96
PROMPTS = {"a": [5, 3, 8, 1], "b": list(range(1, 40))}

Tiny = Callable[[str], Path]


class TestInt8(RunnerSuite):
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


def of_folder(folder: Path, options: Mapping[str, Any] = INT8, dtype: str = "float32") -> dict[str, list[int]]:
    with start_runner("v2", folder, num_blocks=NUM_BLOCKS, options=options, dtype=dtype) as started:
        return answers(started.runner)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2-mixed-window"])  # tied or not, with biases or without
def test_the_kernels_and_the_python_code_give_the_same_tokens(tiny: Tiny, family: str) -> None:
    assert of_folder(tiny(family)) == of_folder(tiny(family), INT8 | {"compile": "off"})


def test_weights_of_products_are_in_int8_and_the_embedding_is_not(tiny: Tiny) -> None:
    def lying(weights: str) -> dict[str, tuple[torch.dtype, int]]:
        options = INT8 | {"weights": weights}
        with start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=options, dtype="bfloat16") as started:
            assert started.runner.in_force().get("weights") == ("int8" if weights == "int8" else None)
            body, head = started.runner.step._constants  # type: ignore[attr-defined]  # what is there, as it lies
            named = {f"body.{name}": one for name, one in body.items()} | {
                f"head.{name}": one for name, one in head.items()
            }
            return {name: (one.dtype, one.nbytes) for name, one in named.items()}

    model, int8 = lying("model"), lying("int8")
    assert model.keys() == int8.keys()
    changed = {name for name, (dtype, _) in int8.items() if dtype == torch.int8}
    assert len(changed) == 4 * 3 + 1  # of three layers, and the head, which is tied to the embedding
    assert int8["body.model_embed_tokens_weight"] == model["body.model_embed_tokens_weight"]
    assert all(int8[name] == model[name] for name in model.keys() - changed)


def test_log_probabilities_are_near_those_of_the_model(tiny: Tiny) -> None:
    told = []
    for options in (INT8, {"compile": "wait"}):
        with start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=options) as started:
            driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
            driver.add("b", PROMPTS["b"], SamplingParams(max_tokens=1, prompt_logprobs=0))
            driver.run()
            told.append([entry.logprob for part in driver.prompt_logprobs["b"] for entry in part.entries])
    int8, model = torch.tensor(told)
    assert 0 < (int8 - model).abs().mean() < 0.1  # of about 7


def test_other_weights_are_quantised_too(tiny: Tiny, tmp_path: Path) -> None:
    other = redraw(tiny("llama"), tmp_path / "other")
    with start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=INT8) as started:
        runner = started.runner
        before = answers(runner)
        runner.sleep(1)
        runner.wake_up(frozenset({"weights", "kv_cache"}))
        assert answers(runner) == before
        runner.sleep(2)
        runner.wake_up(frozenset({"weights"}))
        runner.start_weight_update(StartWeightUpdate(path=str(other)))
        runner.finish_weight_update(FinishWeightUpdate())
        runner.wake_up(frozenset({"kv_cache"}))
        after = answers(runner)
        assert runner.in_force()["weights"] == "int8"
    assert before == of_folder(tiny("llama"))
    assert after == of_folder(other) != before


def transfer(folder: Path, ours: ModelRunner[Any], theirs: ModelRunner[Any]) -> list[str]:
    """What went wrong, on the sender's side and on the receiver's."""
    place = folder / "meeting"
    place.touch()

    def attempt(side: Callable[..., object], runner: ModelRunner[Any]) -> str:
        try:
            side(runner.weights(), place.as_uri(), 0, 30.0)
        except StartFailed as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(attempt, peer.send, ours), pool.submit(attempt, peer.receive, theirs)]
        return [side.result(60) for side in sides]


@pytest.mark.parametrize("compile", ["wait", "off"])  # of the receiver: what is sent is the same
def test_a_peer_gets_the_very_weights(
    tiny: Tiny,
    tmp_path: Path,
    compile: str,  # noqa: A002  # the option's name
) -> None:
    other = redraw(tiny("llama"), tmp_path / "other")
    expected = of_folder(other)
    options = INT8 | {"compile": compile}
    with (
        start_runner("v2", other, num_blocks=NUM_BLOCKS, options=INT8) as sender,
        start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=options) as receiver,
    ):
        pages = receiver.runner._pages  # type: ignore[attr-defined]  # a worker reserves them later
        receiver.runner.load_empty()
        assert transfer(tmp_path, sender.runner, receiver.runner) == ["", ""]
        receiver.runner.weights_received()
        receiver.runner.bind_cache(pages)  # type: ignore[attr-defined]  # as above
        assert answers(receiver.runner) == expected


def test_a_peer_with_weights_of_the_other_kind_is_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    with (
        start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options=INT8) as sender,
        start_runner("v2", tiny("llama"), num_blocks=NUM_BLOCKS, options={"compile": "wait"}) as receiver,
    ):
        sent, received = transfer(tmp_path, sender.runner, receiver.runner)
    assert received.startswith("the peer has other weights: body.")
    assert "_weight is torch.int8 [" in received
    assert ", and here body." in received
    assert sent.startswith("the peer wants other weights: body.")


def test_the_start_waits_for_the_kernels_unless_they_are_off() -> None:
    assert RunnerV2Options(weights="int8").building == "wait"
    assert RunnerV2Options(weights="int8", compile="off").building == "off"
    assert RunnerV2Options().building == "background"

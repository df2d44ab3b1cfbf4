"""Runner v1 on several ranks: the tokens of one, from a part of the weights and of the cache on each.

The short form runs models of each kind of split; ``-m soak`` all of them, and more ranks. test_split_logits.py has the
numbers of all of them in the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enginebay.messages import SamplingParams
from enginebay.testing import start_runner
from enginebay.worker.probing.known_parallel import NO_STAGES, NO_TENSOR_RANKS
from support.parity import Reference, Verdict
from support.rank_models import PROMPTS, run_one
from support.ranks import Herd
from support.tiny_models import FAMILIES

Tiny = Callable[[str], Path]

KINDS = {
    "llama": "tied, KV heads shared out",
    "llama-one-kv-head": "one KV head on both ranks",
    "gemma2": "scaled embedding, caps, windows of some layers",
    "gpt-neox": "queries, keys and values in one projection",
    "olmo2": "attention whole on every rank",
    "deepseek-v2": "latent attention and experts",
}
"""Family → what it has that others do not."""
RUN = "support.rank_models:run_models"
GREEDY = {"max_tokens": 16, "ignore_eos": True}
REST = [name for name in FAMILIES if name not in KINDS]
GROUPS = {"kinds": [*KINDS], **{f"rest-{part}": REST[part::4] for part in range(4)}}
"""What one pair of processes runs: a start takes longer than a model."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def herd() -> Iterator[Herd]:
    with Herd("support.rank_models", "enginebay_runner_v1.runner", "enginebay.worker.device") as made:
        yield made


def can(family: str, refused: dict[str, str]) -> bool:
    return FAMILIES[family][0] not in refused


@dataclass
class Told:
    """What two ranks told: by rank, "family tp" and "family pp" → the answer of ``run_models``."""

    families: list[str]
    ranks: list[dict[str, Any]]

    def of(self, way: str) -> dict[str, list[dict[str, Any]]]:
        """Family → what each rank told of it, of those that were run this way."""
        names = {family: f"{family} {way}" for family in self.families}
        return {f: [rank[name] for rank in self.ranks] for f, name in names.items() if name in self.ranks[0]}


@pytest.fixture(
    scope="module", params=[name if name == "kinds" else pytest.param(name, marks=pytest.mark.soak) for name in GROUPS]
)
def told(herd: Herd, request: pytest.FixtureRequest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Told:
    families = GROUPS[request.param]
    jobs: list[list[Any]] = []
    for family in families:
        if can(family, NO_TENSOR_RANKS):
            jobs.append([f"{family} tp", str(tiny(family)), 2, 1, {}, [GREEDY]])
        if can(family, NO_STAGES):
            jobs.append([f"{family} pp", str(tiny(family)), 1, 2, {}, [GREEDY]])
    folder = tmp_path_factory.mktemp("ranks")
    return Told(families, herd.run(RUN, 2, {"joined": [2, 1], "jobs": jobs}, folder, 600))


@pytest.mark.parametrize("way", ["tp", "pp"])
def test_every_rank_has_the_tokens_of_transformers(
    told: Told, reference_of: Callable[[str], Reference], way: str
) -> None:
    total = Verdict()
    assert told.of(way)
    for family, (first, second) in told.of(way).items():
        assert first["tokens"] == second["tokens"], family
        assert first["faults"] == second["faults"] == {}, family
        verdict = reference_of(family).compare(PROMPTS, first["tokens"])
        assert not verdict.faults, (family, verdict.faults)
        total.add(verdict)
    total.check()


def test_each_tensor_rank_has_a_part_of_the_weights(told: Told, load: Callable[[str, str], Any]) -> None:
    """Together they have all of them, and what is on both is no more than the plan leaves whole."""
    for family, ranks in told.of("tp").items():
        model = load(family, FAMILIES[family][0])
        whole = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        parts = [rank["weights"] for rank in ranks]
        assert whole <= sum(parts) <= 1.6 * whole, (family, parts, whole)
        assert max(parts) < 0.8 * whole, (family, parts, whole)


def test_each_stage_has_its_layers_and_their_cache(told: Told) -> None:
    for family, (first, second) in told.of("pp").items():
        count = len(first["layers"]) + len(second["layers"])
        assert [*first["layers"], *second["layers"]] == list(range(count)), family
        assert first["in_force"]["pipeline parallel"].startswith("stage 1 of 2: layers 0 to "), family
        assert first["bytes_per_block"] * len(second["layers"]) == second["bytes_per_block"] * len(first["layers"])


def test_draws_penalties_and_logprobs_are_those_of_one_rank(herd: Herd, tiny: Tiny, tmp_path: Path) -> None:
    """On every rank of the stage that draws; the others know the tokens."""
    sampling: list[dict[str, Any]] = [
        {"max_tokens": 10, "temperature": 1.0, "top_p": 0.9, "ignore_eos": True, "logprobs": 2},
        {"max_tokens": 10, "repetition_penalty": 1.5, "ignore_eos": True, "prompt_logprobs": 1},
    ]
    folder = tiny("llama-rope-llama3")
    jobs = [["tp", str(folder), 2, 1, {}, sampling], ["pp", str(folder), 1, 2, {}, sampling]]
    ranks = herd.run(RUN, 2, {"joined": [2, 1], "jobs": jobs}, tmp_path)
    with start_runner("v1", folder) as started:
        alone = run_one(started.runner, [SamplingParams(**params) for params in sampling])
    for way in ("tp", "pp"):
        for told in (rank[way] for rank in ranks):
            assert told["tokens"] == alone["tokens"]
    for told in (ranks[0]["tp"], ranks[1]["tp"], ranks[1]["pp"]):
        for what in ("logprobs", "prompt_logprobs"):
            assert told[what].keys() == alone[what].keys()
            for key, values in alone[what].items():
                assert told[what][key] == pytest.approx(values, abs=1e-4)
    assert ranks[0]["pp"]["logprobs"] == ranks[0]["pp"]["prompt_logprobs"] == {}


def test_in_half_precision_too(herd: Herd, tiny: Tiny, tmp_path: Path) -> None:
    """Stages compute what one rank does, bit for bit; sums over tensor ranks are rounded elsewhere."""
    half = {"dtype": "bfloat16"}
    jobs: list[list[Any]] = []
    for family in ("llama", "gemma2", "deepseek-v2"):
        jobs.append([f"{family} tp", str(tiny(family)), 2, 1, half, [GREEDY]])
        jobs.append([f"{family} pp", str(tiny(family)), 1, 2, half, [GREEDY]])
    first, second = herd.run(RUN, 2, {"joined": [2, 1], "jobs": jobs}, tmp_path, 300)
    for name, told in first.items():
        assert told["tokens"] == second[name]["tokens"], name
        assert told["faults"] == second[name]["faults"] == {}, name
        family, way = name.split()
        if way == "pp":
            with start_runner("v1", tiny(family), dtype="bfloat16") as started:
                assert told["tokens"] == run_one(started.runner, [SamplingParams(**GREEDY)])["tokens"], name


@pytest.mark.parametrize("way", ["tensor", pytest.param("stages", marks=pytest.mark.soak)])
def test_batch_invariance_holds_within_one_size(herd: Herd, tiny: Tiny, tmp_path: Path, way: str) -> None:
    """The check of the whole model at warm-up passes on both ranks of either kind, over sums in a fixed order."""
    sizes = [2, 1] if way == "tensor" else [1, 2]
    jobs = [[way, str(tiny("llama")), *sizes, {"batch_invariant": True}, [GREEDY]]]
    first, second = herd.run(RUN, 2, {"joined": sizes, "jobs": jobs}, tmp_path)
    assert first[way]["tokens"] == second[way]["tokens"]
    assert "batch_invariant" in first[way]["in_force"]


def test_what_is_in_force_says_the_split(told: Told) -> None:
    words = {family: ranks[0]["in_force"]["tensor parallel"] for family, ranks in told.of("tp").items()}
    expected = {
        "llama": "3+3 query heads, 1+1 KV heads",
        "llama-one-kv-head": "3+3 query heads, 1+1 KV heads (some on several ranks)",
        "gpt-neox": "3+3 query heads, 3+3 KV heads",
        "olmo2": "2 ranks, attention whole on each",
    }
    assert words.items() >= expected.items() or told.families != GROUPS["kinds"]


@pytest.mark.soak
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 2), (3, 1), (1, 3)])
def test_more_ranks(
    herd: Herd, tiny: Tiny, reference_of: Callable[[str], Reference], tmp_path: Path, tensor: int, pipeline: int
) -> None:
    """Both ways at once; and three ranks, of which two share a KV head and its six query heads unevenly."""
    families = ("llama", "llama-rope-llama3", "gemma2", "mixtral")
    jobs = [[family, str(tiny(family)), tensor, pipeline, {}, [GREEDY]] for family in families]
    ranks = herd.run(RUN, tensor * pipeline, {"joined": [tensor, pipeline], "jobs": jobs}, tmp_path)
    for family in families:
        for told in ranks:
            assert told[family]["tokens"] == ranks[0][family]["tokens"]
        assert not reference_of(family).compare(PROMPTS, ranks[0][family]["tokens"]).faults

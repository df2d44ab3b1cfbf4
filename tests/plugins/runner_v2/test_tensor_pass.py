"""Pass ``tensor_parallel``: ranks that exchange what they have in part compute what one rank does, each from its part.

The ranks are threads here, so that every architecture can be compared number by number.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.errors import PluginBroken
from enginebay.graph import run_passes, to_record
from enginebay.interfaces import GraphContext
from enginebay.worker.loader_build import build_on_meta
from enginebay.worker.names import Place
from enginebay.worker.parallel.plan import make_plan
from enginebay.worker.parallel.shares import HeadShare
from enginebay.worker.probing.known_parallel import NO_TENSOR_RANKS
from enginebay.worker.probing.shapes import LayerShape
from enginebay_runner_v2.capturable import NOT_CAPTURED
from enginebay_runner_v2.capture import CapturedModel
from enginebay_runner_v2.collectives import TENSOR, join, leave
from enginebay_runner_v2.own_weights import OwnWeights
from enginebay_runner_v2.passes import built_in_passes
from enginebay_runner_v2.passes.tensor_parallel import PLAN
from support.graph_steps import Paged, Request, capture_tiny, paged, state_of
from support.rank_models import PROMPTS
from support.rank_threads import Meeting, ThreadGroup, on_threads
from support.tiny_models import FAMILIES, make_model

TOLERANCE = 2e-5
"""Of the largest logit, that another order of sums may move."""
ALL = [family for family, (name, _) in FAMILIES.items() if name not in NO_TENSOR_RANKS.keys() | NOT_CAPTURED.keys()]


@dataclass(frozen=True)
class Split:
    """A tiny model whose step was captured once, as it is before the passes: what each of its ranks makes of it."""

    folder: Path
    size: int
    captured: CapturedModel
    context: GraphContext

    @classmethod
    def of(cls, folder: Path, size: int) -> Split:
        return cls(folder, size, *capture_tiny(folder, tensor_size=size))

    def step(self, rank: int, size: int) -> tuple[CapturedModel, GraphContext]:
        """The captured step, for one rank of as many; nothing of it is another's."""
        graph = copy.deepcopy(self.captured.graph_module.graph)
        context = replace(self.context, constants=dict(self.context.constants), tensor_rank=rank, tensor_size=size)
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        own = replace(self.captured, graph_module=module, own_shapes=self.captured.shapes)
        if size > 1:
            plan = make_plan(self._on_meta(), rank, size)
            own.graph_module.meta[PLAN] = plan
            shares = [each[rank] for each in plan.heads.values()]
            if shares:  # attention is split too
                own = replace(own, own_shapes=tuple(map(_own, own.shapes, shares)))
        return own, context

    def _on_meta(self) -> Any:
        return build_on_meta(self.folder, self.captured.facts.architecture, "eager", sys.maxsize)

    def paged(self, rank: int = 0, size: int = 1, group: str = TENSOR) -> Paged:
        """Behind all passes; ``group`` is where the rank meets the others."""
        captured, context = self.step(rank, size)
        run_passes(captured.graph_module, built_in_passes(), context)
        for node in captured.graph_module.graph.nodes:
            if node.args and node.args[-1] == TENSOR:
                node.args = (*node.args[:-1], group)
        captured.graph_module.recompile()
        return paged(captured, context, state_of(self.folder))


def _own(shape: LayerShape, share: HeadShare) -> LayerShape:
    return replace(shape, heads=len(share.queries), kv_heads=len(share.kv))


def logits(step: Paged) -> list[torch.Tensor]:
    """Of a step in which prompts begin, and of one more token of each."""
    requests = [Request([*prompt, 1], len(prompt), 0, [[] for _ in step.groups]) for prompt in PROMPTS]
    found = [step.step(requests, list(map(len, PROMPTS)))[0]]
    return [*found, step.step(requests, [1] * len(requests))[0]]


def moved(split: Split) -> float:
    """How far the ranks' logits are from one's, as a part of the largest."""
    size = split.size
    meeting = Meeting(size)
    names = [join(ThreadGroup(meeting, rank)) for rank in range(size)]
    try:
        steps = [split.paged(rank, size, name) for rank, name in enumerate(names)]
        first, *others = on_threads(meeting, lambda rank: logits(steps[rank]))
    finally:
        for name in names:
            leave(name)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)), "every rank draws"
    whole = logits(split.paged())
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(first, whole, strict=True))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.of(make_model(tmp_path_factory.mktemp("llama") / "model", "llama", num_hidden_layers=1), 3)


def test_three_ranks_that_share_two_kv_heads_have_the_logits_of_one(llama: Split) -> None:
    assert moved(llama) <= TOLERANCE


def test_two_ranks_that_share_one_kv_head_have_the_logits_of_one(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama-one-kv-head", num_hidden_layers=1)
    assert moved(Split.of(folder, 2)) <= TOLERANCE


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("family", ALL)
def test_ranks_of_every_family_have_the_logits_of_one(tiny: Callable[[str], Path], family: str, size: int) -> None:
    assert moved(Split.of(tiny(family), size)) <= TOLERANCE


def test_a_call_that_is_not_known_to_work_on_parts_is_refused(llama: Split) -> None:
    """Here a norm over numbers of which each rank has some, in the place of the gate's activation."""
    captured, context = llama.step(0, 2)
    passes = {one.name: one for one in built_in_passes()}
    run_passes(captured.graph_module, [passes["drop"], passes["two_dimensions"]], context)
    silu = next(node for node in captured.graph_module.graph.nodes if node.target is torch.ops.aten.silu.default)
    silu.target, silu.args = torch.ops.aten.softmax.int, (silu.args[0], -1)
    with pytest.raises(PluginBroken) as caught:
        run_passes(captured.graph_module, [passes["tensor_parallel"]], context)
    assert str(caught.value) == (
        f"graph pass 'tensor_parallel' raised ModelError: tensor_parallel_size = 2: '{silu.name}' (aten.softmax.int) "
        "cannot be split: it works along dimension 1, of which there is a part here; set it to 1 in [parallel]"
    )


def test_a_rank_reads_its_rows_where_they_are_and_copies_its_columns(llama: Split) -> None:
    captured, context = llama.step(1, 2)
    run_passes(captured.graph_module, built_in_passes(), context)
    own = OwnWeights([to_record(captured.graph_module, context.constants)], captured.facts)
    whole = torch.arange(199 * 48).view(199, 48)
    rows = Place("model.embed_tokens.weight")
    assert own.cut(rows, whole, 0).data_ptr() == whole[99].data_ptr()
    assert not own.copies(rows)
    assert own.shape("model.embed_tokens.weight") == own.shape("lm_head.weight") == (100, 48)
    assert own.copies(Place("model.layers.0.self_attn.o_proj.weight"))
    assert own.shape("model.layers.0.self_attn.o_proj.weight") == (48, 24)
    assert own.shape("model.layers.0.self_attn.k_proj.weight") == (8, 48)
    assert own.shape("model.norm.weight") == (48,)


def test_a_step_without_its_world_says_so() -> None:
    for operator, sizes in ((torch.ops.enginebay.all_reduce, ()), (torch.ops.enginebay.all_gather, ([2],))):
        with pytest.raises(RuntimeError, match="no group of ranks is named 'tensor' here: a step of several ranks"):
            operator(torch.ones(2), *sizes, TENSOR)

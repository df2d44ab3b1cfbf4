"""Each built-in pass leaves a step's results as they were: the same bits, or within what the pass declares."""

from __future__ import annotations

import pytest
from torch.fx import GraphModule

from enginebay.graph import verify
from enginebay_runner_v2 import references
from enginebay_runner_v2.ops import NAMESPACE
from enginebay_runner_v2.passes import built_in_passes
from support.graph_steps import SMALL, Step, step_inputs, tiny_step

PASSES = {one.name: one for one in built_in_passes()}
OTHER_PRODUCTS = {"sampled_rows", "pack_projections"}
"""Those after which products have other shapes; all others change no bit by the references of our operators."""
BEFORE = dict(zip(PASSES, ["", *PASSES], strict=False))


def by_reference(step: Step) -> GraphModule:
    """The graph with our operators' references called by name: kernels may have been loaded in this process."""
    module = step.captured.graph_module
    for node in module.graph.nodes:
        if getattr(node.target, "namespace", None) == NAMESPACE:
            node.target = getattr(references, node.target.__name__.removesuffix(".default"))
    module.recompile()
    return module


def differs(before: Step, after: Step, lengths: list[int], tolerance: float) -> str | None:
    """In what, when requests of these lengths begin."""
    constants = {name: tensor for name, tensor in after.paged().tensors.items() if "_cache_" not in name}
    inputs = {**constants, **step_inputs(before.paged(), lengths)}
    difference = verify(by_reference(before), by_reference(after), inputs, tolerance=tolerance)
    return None if difference is None else str(difference)


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_results(name: str, family: str) -> None:
    before, after = tiny_step(family, BEFORE[name]), tiny_step(family, name)
    same = before.captured.graph_module.code == after.captured.graph_module.code
    nothing_to_do = name == "tensor_parallel" or (name, family) == ("pack_projections", "phi3")
    assert same == nothing_to_do  # one rank has all of it; it is packed in the file
    assert differs(before, after, [7, 1, 18, 3], PASSES[name].tolerance if name in OTHER_PRODUCTS else 0.0) is None


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [2], [17]])
def test_a_rewritten_step_takes_any_number_of_tokens(lengths: list[int]) -> None:
    assert differs(tiny_step("llama"), tiny_step("llama", "linear"), lengths, 1e-4) is None


def test_a_pass_that_went_wrong_would_be_seen() -> None:
    step, wrong = tiny_step("llama", "linear"), tiny_step("llama", "linear")
    norm = next(node for node in wrong.captured.graph_module.graph.nodes if "rms_norm" in str(node.target))
    norm.args = (*norm.args[:-1], 1)
    assert differs(step, wrong, [7, 1], 1e-4) is not None

"""A head whose logits are a product in float32 tells their largest; any other one stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from enginebay.graph import Record, RecordNode, check_record
from enginebay_runner_v2.execution import CodePart, NativePart
from enginebay_runner_v2.scored_head import scored_head
from support.kernel_kinds import ops


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def head(*more: RecordNode, outputs: list[str], **kwargs: Any) -> Record:
    product = RecordNode(name="logits", op="enginebay::linear", args=[ref("picked"), ref("w"), None, 70], kwargs=kwargs)
    made = Record(
        format=1,
        inputs=["rows", "x"],
        constants=["w"],
        nodes=[
            RecordNode(name="picked", op="enginebay::select_rows", args=[ref("x"), ref("rows")]),
            product,
            *more,
        ],
        outputs=outputs,
        origins={"w": {"parameter": "head.weight"}},
    )
    check_record(made)
    return made


@pytest.mark.parametrize("make", [CodePart, NativePart])
def test_the_largest_are_told(make: type[CodePart] | type[NativePart]) -> None:
    plain = head(outputs=["logits"], float_out=True)
    scored = scored_head(plain)
    check_record(scored)
    x, rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(1)), torch.tensor([7, 0, 3])
    weight = torch.randn(70, 40, generator=torch.Generator().manual_seed(2))
    parts = [make(plain), make(scored)]
    for part in parts:
        part.bind({"w": ops.pack_linear(weight)})
    (expected,), (logits, ids, values) = (part.run([rows, x]) for part in parts)
    assert torch.equal(logits, expected)
    best, largest = ops.greedy(expected)
    assert torch.equal(ids, best)
    assert torch.equal(values, largest)


def test_another_head_stays() -> None:
    capped = RecordNode(name="capped", op="aten::tanh", args=[ref("logits")])
    taken = head(outputs=["logits"], float_out=True)
    taken.inputs.append("logits_ids")
    for other in [
        head(outputs=["logits"]),
        head(outputs=["logits"], float_out=False),
        head(capped, outputs=["capped"], float_out=True),
        head(outputs=["logits", "picked"], float_out=True),
        taken,
    ]:
        assert scored_head(other) is other

"""The head that finds each row's largest logit in passing, while its product has it at hand."""

from __future__ import annotations

from enginebay.graph import Record, RecordNode
from enginebay_runner_v2.ops import NAMESPACE

__all__ = ["scored_head"]


def scored_head(head: Record) -> Record:
    """The head with two outputs more, ``greedy`` of its logits; as it is where its logits are no product in float32."""
    last = head.nodes[-1]
    plain = last.op == f"{NAMESPACE}::linear" and last.kwargs == {"float_out": True} and len(last.args) == 4
    if not plain or head.outputs != [last.name]:
        return head
    taken = {*head.inputs, *head.constants, *(node.name for node in head.nodes)}
    whole, ids, values = (f"{last.name}_{word}" for word in ("greedy", "ids", "values"))
    if taken.intersection((whole, ids, values)):
        return head
    outputs = [last.name, ids, values]
    parts = [RecordNode(name=name, op="getitem", args=[{"ref": whole}, at]) for at, name in enumerate(outputs)]
    product = RecordNode(name=whole, op=f"{NAMESPACE}::linear_greedy", args=last.args)
    return Record(
        format=head.format,
        inputs=head.inputs,
        constants=head.constants,
        nodes=[*head.nodes[:-1], product, *parts],
        outputs=outputs,
        origins=head.origins,
    )

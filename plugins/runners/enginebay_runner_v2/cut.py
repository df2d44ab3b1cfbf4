"""Cuts a step's record in two: the body, which is run over all tokens, and the head, which is run over some of them.

What depends on ``rows`` is the head. A step runs both; the log-probabilities of a long prompt run the head again, over
a few rows at a time, since logits for all its tokens would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from enginebay.errors import GraphError
from enginebay.graph import Record, RecordNode

__all__ = ["cut", "refs"]

ROWS = "rows"


def cut(record: Record) -> tuple[Record, Record]:
    """Body and head. The head's inputs are ``rows`` and the body's outputs, in their order.

    Raises ``GraphError`` where an output does not depend on ``rows``, and where head and body share a number.
    """
    of_head = {ROWS}
    body: list[RecordNode] = []
    head: list[RecordNode] = []
    for node in record.nodes:
        part = head if of_head.intersection(refs(node)) else body
        part.append(node)
        if part is head:
            of_head.add(node.name)
    if strays := [name for name in record.outputs if name not in of_head]:
        raise GraphError(f"the output {strays[0]!r} is no choice of rows: this step cannot be cut at its head")
    made = {node.name: node for node in body}
    crossing = list(dict.fromkeys(name for node in head for name in refs(node) if name in made))
    if numbers := [name for name in crossing if made[name].op.startswith(("int:", "aten::sym_size"))]:
        raise GraphError(f"the head needs the number {numbers[0]!r} of the body: this step cannot be cut there")
    others = [name for name in record.inputs if name != ROWS]
    if shared := [name for node in head for name in refs(node) if name in others]:
        raise GraphError(f"the head reads the input {shared[0]!r}: this step cannot be cut there")
    return (
        _part(record, body, others, crossing),
        _part(record, head, [ROWS, *crossing], record.outputs),
    )


def _part(record: Record, nodes: list[RecordNode], inputs: Sequence[str], outputs: Sequence[str]) -> Record:
    used = {name for node in nodes for name in refs(node)}
    constants = [name for name in record.constants if name in used]
    return Record(
        format=record.format,
        inputs=list(inputs),
        constants=constants,
        nodes=nodes,
        outputs=list(outputs),
        origins={name: record.origins[name] for name in constants},
    )


def refs(node: RecordNode) -> Iterator[str]:
    """The names that a node's arguments refer to."""
    for value in (*node.args, *node.kwargs.values()):
        yield from _refs(value)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and "ref" in value:
        yield value["ref"]
    elif isinstance(value, list):
        for one in value:
            yield from _refs(one)

"""The record of a graph: its nodes as JSON, which reads back without torch, and executes nothing when it is read.

A record is a file on disk, and somebody else may have damaged it: ``load_record`` takes nothing on trust. Names are
identifiers, operators come from the namespaces ``aten`` and ``enginebay`` or are one of four reckonings with numbers,
and every reference is to something that stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from keyword import iskeyword
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from enginebay.errors import GraphError, one_line
from enginebay.graph._origins import origin_from_json
from enginebay.interfaces import Origin

FORMAT: Final = 1
GETITEM: Final = "getitem"
INT_OPERATORS: Final = ("int:add", "int:sub", "int:mul", "int:floordiv")
_OPERATOR: Final = re.compile(r"(aten|enginebay)::[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99})?")
_FORBIDDEN: Final = frozenset({"aten::from_file"})  # of all operators of ATen the one that opens files
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_RESERVED: Final = frozenset({"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"})
"""Names that generated code has a meaning for."""
_MAX_BYTES: Final = 64 * 2**20
_MAX_NODES: Final = 200_000
_MAX_LIST: Final = 10_000
_MAX_DEPTH: Final = 4
_MAX_TEXT: Final = 200
_DTYPES: Final = frozenset(
    {"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "int32", "int16", "int8", "uint8", "bool"}
)
_WORDS: Final = {
    "dtype": _DTYPES,
    "layout": frozenset({"strided"}),
    "memory_format": frozenset({"contiguous_format", "preserve_format", "channels_last"}),
    "float": frozenset({"inf", "-inf", "nan"}),
}
_DEVICE: Final = re.compile(r"(cpu|cuda|xpu|mps|meta)(:\d{1,3})?")


class RecordNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call. ``args`` and the values of ``kwargs`` are null, booleans, numbers, text, lists of these, or
    ``{"ref": name}``, ``{"dtype": …}``, ``{"device": …}``, ``{"layout": …}``, ``{"memory_format": …}``, and
    ``{"float": "inf" | "-inf" | "nan"}``, which JSON's numbers lack."""

    name: str
    op: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph as data. ``inputs`` change from step to step, ``constants`` do not, and ``origins`` says where each of
    these comes from; in the order in which the generated code takes them: inputs, then constants."""

    format: int
    inputs: list[str]
    constants: list[str]
    nodes: list[RecordNode]
    outputs: list[str]
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)

    def origin(self, constant: str) -> Origin:
        """Where a constant comes from; raises ``GraphError`` for one that says nothing."""
        return origin_from_json(constant, self.origins.get(constant))


def dump_record(record: Record) -> bytes:
    """The record as JSON; whole floats keep their point (1.0), so that they come back as floats."""
    return msgspec.json.encode(record)


def load_record(data: bytes, where: str = "record") -> Record:
    """The record that the JSON holds, checked; raises ``GraphError`` with ``where`` and the first thing wrong."""
    try:
        if len(data) > _MAX_BYTES:
            raise GraphError(f"it has {len(data)} bytes, and at most {_MAX_BYTES} are read")
        record = msgspec.json.decode(data, type=Record)
        check_record(record)
    except (msgspec.DecodeError, RecursionError, GraphError, UnicodeError) as error:
        raise GraphError(
            f"{where}: not a record of a graph: {one_line(str(error))}. Delete it: it is made anew."
        ) from None
    return record


def read_record(path: Path) -> Record:
    """The record in a file, checked; raises ``GraphError`` that names it, and ``OSError``."""
    with path.open("rb") as file:
        return load_record(file.read(_MAX_BYTES + 1), str(path))


def check_record(record: Record) -> None:
    """Raises ``GraphError`` with the first thing that is wrong."""
    if record.format != FORMAT:
        raise GraphError(f"its format is {record.format}, and this version reads {FORMAT}")
    if len(record.nodes) > _MAX_NODES:
        raise GraphError(f"it has {len(record.nodes)} nodes, and at most {_MAX_NODES} are read")
    known: set[str] = set()
    for name in (*record.inputs, *record.constants):
        _check_new(name, known)
    for node in record.nodes:
        _check_operator(node)
        for value in (*node.args, *node.kwargs.values()):
            _check_value(value, known, node.name)
        if bad := [key for key in node.kwargs if not _NAME.fullmatch(key) or iskeyword(key)]:
            raise GraphError(f"node {node.name!r}: {bad[0]!r:.80} cannot be an argument's name")
        _check_new(node.name, known)
    if missing := [name for name in record.outputs if name not in known]:
        raise GraphError(f"its output {missing[0]!r:.80} is made by no node")
    if unknown := sorted(record.origins.keys() - set(record.constants)):
        raise GraphError(f"it has an origin of {unknown[0]!r:.80}, which is no constant")
    for name in record.origins:
        record.origin(name)


def is_usable_name(name: str) -> bool:
    """Whether generated code may have a variable of that name."""
    return _NAME.fullmatch(name) is not None and not iskeyword(name) and name not in _RESERVED


def _check_new(name: str, known: set[str]) -> None:
    if not is_usable_name(name):
        raise GraphError(f"{name!r:.80} cannot be the name of a value")
    if name in known:
        raise GraphError(f"two values are named {name!r}")
    known.add(name)


def _check_operator(node: RecordNode) -> None:
    op = node.op
    if op in INT_OPERATORS:
        if len(node.args) != 2 or node.kwargs:
            raise GraphError(f"node {node.name!r:.80}: {op} takes two numbers")
    elif op == GETITEM:
        if len(node.args) != 2 or node.kwargs or type(node.args[1]) is not int:
            raise GraphError(f"node {node.name!r:.80}: {op} takes a value and a number")
    elif not _OPERATOR.fullmatch(op) or op.partition(".")[0] in _FORBIDDEN:
        raise GraphError(
            f"node {node.name!r:.80}: operator {op!r:.80} is not allowed; "
            f"allowed: aten::…, enginebay::…, {', '.join(INT_OPERATORS)}, {GETITEM}"
        )


def _check_value(value: Any, known: Iterable[str], node: str, depth: int = 0) -> None:
    if isinstance(value, list):
        if depth >= _MAX_DEPTH or len(value) > _MAX_LIST:
            raise GraphError(f"node {node!r:.80}: a list of {len(value)} values, {depth + 1} deep, is too much")
        for one in value:
            _check_value(one, known, node, depth + 1)
    elif isinstance(value, dict):
        _check_word(value, known, node)
    elif isinstance(value, str):
        if len(value) > _MAX_TEXT or not value.isprintable():
            raise GraphError(f"node {node!r:.80}: a text of {len(value)} characters is too long, or not plain")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise GraphError(f"node {node!r:.80}: a whole number beyond 64 bits")
    elif isinstance(value, float) and not isfinite(value):
        raise GraphError(f"node {node!r:.80}: {value} must be written as a word: JSON has no such number")


def _check_word(value: dict[str, Any], known: Iterable[str], node: str) -> None:
    [(kind, word)] = value.items() if len(value) == 1 else [("", None)]
    if not isinstance(word, str):
        raise GraphError(f"node {node!r:.80}: {str(value)!r:.80} is no argument")
    if kind == "ref":
        if word not in known:
            raise GraphError(f"node {node!r:.80} uses {word!r:.80}, which nothing before it makes")
    elif kind == "device":
        if not _DEVICE.fullmatch(word):
            raise GraphError(f"node {node!r:.80}: {word!r:.80} is no device")
    elif word not in _WORDS.get(kind, frozenset()):
        raise GraphError(f"node {node!r:.80}: {kind!r:.80} {word!r:.80} is not known")

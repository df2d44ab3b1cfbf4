"""Captured graphs: the order of passes and running them, the code and the picture of a graph, its record on disk.

Nothing here captures: a runner does, and the command line traces modules with ``torch.fx``. torch is imported by what
needs it, when it is called.
"""

from enginebay.graph._code import code_text
from enginebay.graph._layers import picture_of
from enginebay.graph._record import Record, RecordNode, check_record, dump_record, load_record, read_record
from enginebay.graph._record_graph import from_record, to_record
from enginebay.graph._run import PassReport, run_passes
from enginebay.graph._svg import svg_text
from enginebay.graph._table import NodeRow, ir_text, node_rows
from enginebay.graph._trace import trace
from enginebay.graph._verify import Difference, run_verified, verify

__all__ = [
    "Difference",
    "NodeRow",
    "PassReport",
    "Record",
    "RecordNode",
    "check_record",
    "code_text",
    "dump_record",
    "from_record",
    "ir_text",
    "load_record",
    "node_rows",
    "picture_of",
    "read_record",
    "run_passes",
    "run_verified",
    "svg_text",
    "to_record",
    "trace",
    "verify",
]

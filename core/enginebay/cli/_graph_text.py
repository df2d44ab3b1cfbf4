"""What ``enginebay graph`` prints: sections of text that read well through a pipe, or one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import unified_diff
from typing import Any

from enginebay.cli._graph_source import Shown
from enginebay.cli._style import columns
from enginebay.graph import NodeRow, PassReport, code_text, ir_text, node_rows


def as_text(shown: Shown, parts: Sequence[str], only: Sequence[str], *, diff: bool) -> str:
    """The parts under headings; one part alone has none, so that ``--show code`` is a Python file."""
    blocks: list[tuple[str, str]] = []
    rewritten = any(report.changed for report in shown.reports)
    if "ir" in parts:
        blocks.append(("intermediate representation", shown.ir))
        if rewritten:
            blocks.append(("intermediate representation after the passes", ir_text(shown.graph_module)))
    if "nodes" in parts:
        blocks.append(("nodes", _table(shown.nodes)))
        if rewritten:
            blocks.append(("nodes after the passes", _table(node_rows(shown.graph_module))))
    if "passes" in parts:
        blocks += _passes(shown, only, diff=diff)
    if "code" in parts:
        blocks.append(("code", code_text(shown.graph_module, imports=shown.modules)))
    if len(blocks) == 1 and "passes" not in parts:
        return blocks[0][1]
    head = f"# {shown.source}, {shown.made_by}\n"
    return head + "".join(f"\n## {heading}\n\n{text}" for heading, text in blocks)


def as_json(shown: Shown) -> dict[str, Any]:
    """Everything, whatever was asked to be shown."""
    summaries = {one.name: one.summary for one in shown.passes}
    return {
        "source": shown.source,
        "made_by": shown.made_by,
        "ir": shown.ir,
        "nodes": [asdict(row) for row in shown.nodes],
        "passes": [
            asdict(report) | {"summary": summaries[report.name], "changed": report.changed} for report in shown.reports
        ],
        "verified": shown.verified,
        "after": {"ir": ir_text(shown.graph_module), "nodes": [asdict(row) for row in node_rows(shown.graph_module)]},
        "code": code_text(shown.graph_module, imports=shown.modules),
    }


def _passes(shown: Shown, only: Sequence[str], *, diff: bool) -> Iterator[tuple[str, str]]:
    """Of each pass the code before and after it; what has just been printed as the one after is not printed again."""
    if not shown.reports:
        yield "passes", "none has run\n"
    last = ""
    for report in shown.reports:
        if only and report.name not in only:
            continue
        before = "" if diff or last == report.code_before else f"before:\n\n{report.code_before}\n"
        yield (
            f"pass {report.name}",
            _about(shown, report)
            + (_difference(report) if diff else f"{before}after:\n\n{report.code_after}" if report.changed else before),
        )
        last = report.code_after if not diff else ""


def _about(shown: Shown, report: PassReport) -> str:
    [one] = [one for one in shown.passes if one.name == report.name]
    did = f"{report.nodes_before} nodes before, {report.nodes_after} after" if report.changed else "changed nothing"
    said = ""
    if shown.verified:
        said = f", results within {one.tolerance:g} of their largest" if one.tolerance else ", same results"
    return f"{one.summary} ({report.package or 'unpackaged'})\n{did}{said}\n\n"


def _difference(report: PassReport) -> str:
    before, after = report.code_before.splitlines(), report.code_after.splitlines()
    lines = list(unified_diff(before, after, "before", "after", n=1, lineterm=""))
    return "".join(f"{line}\n" for line in lines)


def _table(rows: Sequence[NodeRow]) -> str:
    cells = [("opcode", "name", "target", "args"), *((row.opcode, row.name, row.target, row.args) for row in rows)]
    return "\n".join(columns(cells)) + "\n"

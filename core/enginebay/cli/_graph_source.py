"""Where ``enginebay graph`` takes a graph from: the runner that the config names, or a module that is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.config import Resolved
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import CapabilityError, EnginebayError, ModelError, PluginError, in_words
from enginebay.graph import NodeRow, PassReport, ir_text, node_rows, run_passes, run_verified, trace
from enginebay.interfaces import CapturedGraph, GraphContext, GraphPass, Kind, RunnerPlugin
from enginebay.plugins import Loaded, PluginHost

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(kw_only=True)
class Shown:
    """A graph that went through its passes, and what there was before. ``modules`` bring operators of its code."""

    source: str
    made_by: str
    graph_module: GraphModule
    context: GraphContext
    modules: tuple[str, ...] = ()
    verified: bool = False
    passes: tuple[GraphPass, ...] = ()
    reports: list[PassReport] = field(default_factory=list)
    ir: str = ""
    nodes: list[NodeRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ir, self.nodes = ir_text(self.graph_module), node_rows(self.graph_module)


def of_model(resolved: Resolved, *, verify: bool) -> Shown:
    """The step of the configured model; raises ``CapabilityError`` for a runner that captures no graph."""
    host = PluginHost()
    planned = plan(resolved, host)
    runner = planned.runner.plugin
    if runner.capture is None or not runner.capabilities.captures_graph:
        raise CapabilityError(
            f"runner '{runner.name}' ({planned.runner.origin}) captures no graph. {_those_that_do(host, planned)}"
        )
    if verify and resolved.config.parallel.tensor_parallel_size > 1:
        raise CapabilityError(
            "--verify-graph runs one rank alone: add --set parallel.tensor_parallel_size=1, or leave it out"
        )
    context = GraphContext(
        dtype="float32" if verify else planned.dtype,
        block_size=planned.block_size,
        max_model_len=planned.max_model_len,
        model=planned.model,
    )
    with _working(f"capturing {planned.model.name}"):
        captured = _capture(runner, context, planned.runner.origin)
    shown = Shown(
        source=planned.model.name,
        made_by=f"captured by runner '{runner.name}' of {planned.runner.origin}, {context.dtype}",
        graph_module=captured.graph_module,
        context=context,
        modules=captured.modules,
        verified=verify,
        passes=host.graph_passes([planned.runner, *planned.worker_extensions]),
    )
    with _working("running passes"):
        shown.reports = _verified(shown, captured, runner.name) if verify else _rewrite(shown)
    return shown


def of_module(resolved: Resolved, named: str, folders: Sequence[Path]) -> Shown:
    """A torch module's graph, through the passes that are for any module."""
    host = PluginHost()
    loaded: list[Loaded[Any]] = [] if (runner := _any_runner(resolved, host)) is None else [runner]
    loaded += host.load_worker_extensions(
        resolved.config.worker.extensions, resolved.config.worker.options, resolved.source("worker.options")
    )
    passes = host.graph_passes(loaded)
    with _working(f"tracing {named}"):
        traced = trace(named, folders=folders)
    shown = Shown(
        source=named,
        made_by="traced by torch.fx.symbolic_trace",
        graph_module=traced,
        context=GraphContext(),
        passes=passes,
    )
    shown.reports = _rewrite(shown, [one.name for one in passes if one.any_module])
    return shown


@contextmanager
def _working(on: str) -> Iterator[None]:
    """What strange code prints meanwhile is no result; on a terminal, say what takes so long."""
    with redirect_stdout(sys.stderr):
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(on):
            yield


def _rewrite(shown: Shown, only: Sequence[str] | None = None) -> list[PassReport]:
    return run_passes(shown.graph_module, shown.passes, shown.context, only=only)


def _verified(shown: Shown, captured: CapturedGraph, runner: str) -> list[PassReport]:
    if captured.inputs is None or captured.constant is None:
        raise CapabilityError(f"runner '{runner}' gives no inputs for a step, so that results cannot be compared")
    inputs = captured.inputs()
    return run_verified(shown.graph_module, shown.passes, shown.context, inputs=inputs, constant=captured.constant)


def _capture(runner: RunnerPlugin[Any], context: GraphContext, origin: str) -> CapturedGraph:
    assert runner.capture is not None
    try:
        return runner.capture(context)
    except EnginebayError:
        raise
    except Exception as error:
        assert context.model is not None
        raise ModelError(
            f"runner '{runner.name}' ({origin}) cannot capture {context.model.name}: {in_words(error)}"
        ) from error


def _any_runner(resolved: Resolved, host: PluginHost) -> Loaded[RunnerPlugin[Any]] | None:
    """The runner that is named; where none is, of those installed that capture graphs the preferred one."""
    use = resolved.config.runner.use
    if use == "auto":
        found = _capturing(host)
        if not found:
            return None
        use = max(found, key=lambda one: one.preference).name
    return host.load_runner(use, resolved.config.runner.options, resolved.source("runner.options"))


def _capturing(host: PluginHost) -> list[RunnerPlugin[Any]]:
    """The installed runners that could; one that cannot be loaded was not asked for, and is passed over."""
    found = []
    for name in dict.fromkeys(one.name for one in host.installed(Kind.RUNNER)):
        try:
            described = host.load_runner_plugin(name)
        except PluginError:
            continue
        if described.capture is not None and described.capabilities.captures_graph:
            found.append(described)
    return found


def _those_that_do(host: PluginHost, planned: Plan) -> str:
    for one in _capturing(host):
        reason = one.supports(planned.model)
        if reason is None:
            return f"One that does: --set runner.use={one.name}"
    return f"No installed runner captures {planned.model.name}; runners: " + ", ".join(
        i.name for i in host.installed(Kind.RUNNER)
    )

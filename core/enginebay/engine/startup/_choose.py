"""Which runner: the named one, or, for "auto", the most preferred of those that fit the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.config import EngineConfig, Resolved
from enginebay.engine.startup._accelerators import accelerator_here
from enginebay.errors import CapabilityError, PluginBroken, PluginError, in_words, is_interrupt, one_line, shown
from enginebay.interfaces import ExecutorPlugin, ExtensionPlugin, Kind, RunnerPlugin
from enginebay.messages import ModelInfo
from enginebay.plugins import Loaded, PluginHost


def choose_runner(
    resolved: Resolved, host: PluginHost, model: ModelInfo, executor: ExecutorPlugin[Any]
) -> tuple[Loaded[RunnerPlugin[Any]], str]:
    """The runner, and why it was chosen.

    A named one that does not run the model is refused with its reason. "auto" takes the highest ``preference`` of
    those that fit, and says which others it passed over, so that a broken or unfitting one is never passed over in
    silence. Where workers may have an accelerator, one that drives it goes before all that do not.
    """
    config = resolved.config
    source = resolved.source("runner.options")
    if config.runner.use != "auto":
        runner = host.load_runner(config.runner.use, config.runner.options, source)
        reason = _supports(runner.plugin, model)
        if reason is not None:
            raise CapabilityError(
                f"runner '{runner.plugin.name}' does not run the model {model.name}: {reason}. "
                f'Choose another model, or [runner] use = "auto".'
            )
        reason = _splits(runner.plugin, model, config)
        if reason is not None:
            raise CapabilityError(
                f"runner '{runner.plugin.name}' does not share out the model {model.name}: {reason}. "
                "Change [parallel], or the model."
            )
        return runner, resolved.origin("runner.use")
    fitting, passed_over = _candidates(host, config, model, executor)
    if not fitting:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in passed_over) or " none is installed."
        raise CapabilityError(f"no installed runner runs the model {model.name}:{reasons}")
    fitting.sort(key=lambda one: (*map(bool, one.drawbacks), -one.plugin.preference, one.plugin.name))
    best, *others = fitting
    why = f"auto: preference {best.plugin.preference}, the highest of those that support {model.architecture}"
    beaten: list[str] = []
    for one in others:
        pairs = zip(one.drawbacks, best.drawbacks, strict=True)
        if (reason := next((theirs for theirs, ours in pairs if theirs and not ours), None)) is not None:
            passed_over.append((one.plugin.name, reason))
        else:
            beaten.append(f"{one.plugin.name} has {one.plugin.preference}")
    if beaten:
        why += f" ({', '.join(beaten)})"
    if passed_over:
        why += "; passed over: " + "; ".join(f"{name}: {reason}" for name, reason in sorted(passed_over))
    return host.load_runner(best.plugin.name, config.runner.options, source), why


@dataclass(frozen=True)
class _Candidate:
    """A runner that can do what is asked. ``drawbacks``: why another that can would rather be taken, gravest first."""

    plugin: RunnerPlugin[Any]
    drawbacks: tuple[str | None, ...]


def _candidates(
    host: PluginHost, config: EngineConfig, model: ModelInfo, executor: ExecutorPlugin[Any]
) -> tuple[list[_Candidate], list[tuple[str, str]]]:
    fitting: list[_Candidate] = []
    passed_over: list[tuple[str, str]] = []
    for name in dict.fromkeys(i.name for i in host.installed(Kind.RUNNER)):
        try:
            plugin = host.load_runner_plugin(name)
            reason = _supports(plugin, model) or unfit(plugin, config, model) or _varies(plugin, config)
            reason = reason or _splits(plugin, model, config)
            if reason is None:
                drawbacks = _too_many_drafts(plugin, config), _idles(plugin, config, executor), _hesitates(plugin)
                fitting.append(_Candidate(plugin, drawbacks))
        except PluginError as error:
            reason = str(error)
        if reason is not None:
            passed_over.append((name, reason))
    return fitting, passed_over


def _too_many_drafts(runner: RunnerPlugin[Any], config: EngineConfig) -> str | None:
    """Where no other verifies so many proposals either, the fit of the parts says what can be done."""
    if (asked := config.speculation.num_tokens) <= (most := runner.capabilities.max_draft_tokens):
        return None
    return f"it verifies {most or 'no'} proposals of a request in a step, and [speculation] max_tokens is {asked}"


def _idles(runner: RunnerPlugin[Any], config: EngineConfig, executor: ExecutorPlugin[Any]) -> str | None:
    """Why a runner would leave an accelerator idle that the workers may have; None when it would not."""
    if config.device.kind != "auto":
        return None
    able, kinds = executor.capabilities, [kind for kind in runner.capabilities.devices if kind != "cpu"]
    if able.multi_node and not able.every_rank_schedules:
        found = None if kinds else f"nodes of executor '{executor.name}' may have an accelerator"
    else:
        here = accelerator_here()
        found = None if here is None or here in kinds else f"this machine seems to have an accelerator ({here})"
    return found and f'{found}, which it cannot use; with [device] kind = "cpu" it is considered'


def _hesitates(runner: RunnerPlugin[Any]) -> str | None:
    return _asked(runner, "hesitates", runner.hesitates)


def unfit(runner: RunnerPlugin[Any], config: EngineConfig, model: ModelInfo) -> str | None:
    """Why a runner cannot do what ``[device]``, ``[parallel]`` and the dtypes ask for; None when it can."""
    can, parallel = runner.capabilities, config.parallel
    if config.device.kind not in ("auto", *can.devices):
        return f"it runs on {', '.join(can.devices)}, and [device] kind asks for '{config.device.kind}'"
    if parallel.tensor_parallel_size > 1 and not can.tensor_parallel:
        return f"it does not split layers, and [parallel] tensor_parallel_size is {parallel.tensor_parallel_size}"
    if parallel.pipeline_parallel_size > 1 and not can.pipeline_parallel:
        return f"it has no pipeline, and [parallel] pipeline_parallel_size is {parallel.pipeline_parallel_size}"
    asked = config.model.dtype
    dtype, whose = (model.dtype, "the model's dtype") if asked == "auto" else (asked, "[model] dtype")
    if can.dtypes and dtype not in can.dtypes:
        return f"it computes in {', '.join(can.dtypes)}, and {whose} is {dtype}"
    if can.cache_as_dtype and config.cache.dtype not in ("auto", dtype):
        return f"its KV cache has the dtype of its weights, and [cache] dtype is {config.cache.dtype}, not {dtype}"
    return None


def _varies(runner: RunnerPlugin[Any], config: EngineConfig) -> str | None:
    """Why "auto" does not take a runner for ``[engine] batch_invariant``; a named one is refused with more words."""
    if config.engine.batch_invariant and "batch_invariant" not in runner.capabilities.features:
        return "it does not compute the same bits whatever the batch, and [engine] batch_invariant is on"
    return None


def _supports(runner: RunnerPlugin[Any], model: ModelInfo) -> str | None:
    return _asked(runner, "supports", lambda: runner.supports(model))


def _splits(runner: RunnerPlugin[Any], model: ModelInfo, config: EngineConfig) -> str | None:
    """Why the model cannot be shared out as ``[parallel]`` asks; None when it can."""
    tensor, pipeline = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    if tensor == 1 and pipeline == 1:
        return None
    return _asked(runner, "splits", lambda: runner.splits(model, tensor, pipeline))


def _asked(runner: RunnerPlugin[Any], name: str, question: Callable[[], Any]) -> str | None:
    """The answer in one line, without its full stop."""
    try:
        answer = question()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PluginBroken(f"runner '{runner.name}' is broken: {name}() raised {in_words(error)}") from error
    if answer is not None and not isinstance(answer, str):
        raise PluginBroken(
            f"runner '{runner.name}' is broken: {name}() returned {shown(answer)}, "
            f"and must return None for yes or the reason for no"
        )
    return None if answer is None else one_line(" ".join(answer.split())).rstrip(".") or "it gave no reason"


def foreseen(loaded: Loaded[RunnerPlugin[Any]] | Loaded[ExtensionPlugin[Any]]) -> Mapping[str, tuple[str, str]]:
    """What a runner or an extension says of itself before it is started, each with its reason."""
    try:
        told = loaded.plugin.foresees(loaded.options)
        return {str(name): (str(value), str(why)) for name, (value, why) in told.items()}
    except Exception as error:
        who = f"{loaded.identity.kind} '{loaded.plugin.name}'"
        raise PluginBroken(f"{who} is broken: foresees() raised {in_words(error)}") from error

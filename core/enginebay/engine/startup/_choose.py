"""Which runner: the named one, or, for "auto", the most preferred of those that fit the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from enginebay.config import EngineConfig, Resolved
from enginebay.errors import CapabilityError, PluginBroken, PluginError, in_words, is_interrupt, one_line, shown
from enginebay.interfaces import Kind, RunnerPlugin
from enginebay.messages import ModelInfo
from enginebay.plugins import Loaded, PluginHost


def choose_runner(resolved: Resolved, host: PluginHost, model: ModelInfo) -> tuple[Loaded[RunnerPlugin[Any]], str]:
    """The runner, and why it was chosen.

    A named one that does not run the model is refused with its reason. "auto" takes the highest ``preference`` of
    those that fit, and says which others it passed over, so that a broken or unfitting one is never passed over in
    silence.
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
    fitting, passed_over = _candidates(host, config, model)
    if not fitting:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in passed_over) or " none is installed."
        raise CapabilityError(f"no installed runner runs the model {model.name}:{reasons}")
    fitting.sort(key=lambda plugin: (-plugin.preference, plugin.name))
    best = fitting[0]
    why = f"auto: preference {best.preference}, the highest of those that support {model.architecture}"
    if passed_over:
        why += "; passed over: " + "; ".join(f"{name}: {reason}" for name, reason in passed_over)
    return host.load_runner(best.name, config.runner.options, source), why


def _candidates(
    host: PluginHost, config: EngineConfig, model: ModelInfo
) -> tuple[list[RunnerPlugin[Any]], list[tuple[str, str]]]:
    fitting: list[RunnerPlugin[Any]] = []
    passed_over: list[tuple[str, str]] = []
    for name in dict.fromkeys(i.name for i in host.installed(Kind.RUNNER)):
        try:
            plugin = host.load_runner_plugin(name)
            reason = _supports(plugin, model) or unfit(plugin, config) or _varies(plugin, config)
            reason = reason or _splits(plugin, model, config)
        except PluginError as error:
            reason = str(error)
        if reason is None:
            fitting.append(plugin)
        else:
            passed_over.append((name, reason))
    return fitting, passed_over


def unfit(runner: RunnerPlugin[Any], config: EngineConfig) -> str | None:
    """Why a runner cannot do what ``[device]`` and ``[parallel]`` ask for; None when it can."""
    can, parallel = runner.capabilities, config.parallel
    if config.device.kind not in ("auto", *can.devices):
        return f"it runs on {', '.join(can.devices)}, and [device] kind asks for '{config.device.kind}'"
    if parallel.tensor_parallel_size > 1 and not can.tensor_parallel:
        return f"it does not split layers, and [parallel] tensor_parallel_size is {parallel.tensor_parallel_size}"
    if parallel.pipeline_parallel_size > 1 and not can.pipeline_parallel:
        return f"it has no pipeline, and [parallel] pipeline_parallel_size is {parallel.pipeline_parallel_size}"
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

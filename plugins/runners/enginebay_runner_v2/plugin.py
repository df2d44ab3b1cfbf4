"""The light half of runner ``v2``: its descriptor and hooks. Neither torch nor transformers is imported here."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    CapturedGraph,
    GraphContext,
    GraphPass,
    ModelRunner,
    RunnerCapabilities,
    RunnerContext,
    RunnerPlugin,
)
from enginebay.worker.probing.known_parallel import splits
from enginebay_runner_v2.capturable import supports
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.passes import built_in_passes

__all__ = ["enginebay_graph_passes", "enginebay_register_runners"]

_FEATURES = frozenset(
    {
        "bad_words",
        "grammar",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "n",
        "penalties",
        "prompt_logprobs",
        "seed",
        "top_k",
        "top_p",
    }
)


def _make(context: RunnerContext[RunnerV2Options]) -> ModelRunner[RunnerV2Options]:
    from enginebay_runner_v2.runner import RunnerV2

    return RunnerV2(context)


def _hesitates() -> str | None:
    from enginebay_runner_v2.native import why_not

    return why_not()


def _foresees(options: RunnerV2Options) -> dict[str, tuple[str, str]]:
    from enginebay_runner_v2.kernels import foreseen

    told = {"kernels": foreseen(options.building)}
    if options.kv_cache == "int8":
        told["kv_cache"] = "int8, a scale for each token of a head", "[runner.options] kv_cache"
    return told


def _capture(context: GraphContext) -> CapturedGraph:
    from enginebay_runner_v2.showing import captured

    return captured(context)


@hookimpl
def enginebay_graph_passes() -> list[GraphPass]:
    """The built-in passes."""
    return built_in_passes()


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[RunnerV2Options]]:
    """Register ``v2``."""
    return [
        RunnerPlugin(
            name="v2",
            summary="The model's graph, captured once and rewritten, run by native kernels.",
            options=RunnerV2Options,
            factory=_make,
            capture=_capture,
            capabilities=RunnerCapabilities(
                captures_graph=True,
                devices=("cpu",),
                features=_FEATURES,
                sleep=True,
                update_weights=True,
                send_weights=True,
                tensor_parallel=True,
                max_draft_tokens=64,
                dtypes=("bfloat16", "float32"),
                cache_as_dtype=True,
            ),
            requires_modules={"torch": "torch", "transformers": "transformers"},
            supports=supports,
            hesitates=_hesitates,
            foresees=_foresees,
            splits=splits,
            preference=20,
        )
    ]

"""The light half of runner ``v1``: its descriptor and hook. Neither torch nor transformers is imported here."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ModelRunner, NoOptions, RunnerCapabilities, RunnerContext, RunnerPlugin
from enginebay.worker.probing.families import supports
from enginebay.worker.probing.known_parallel import splits

__all__ = ["enginebay_register_runners"]

_FEATURES = frozenset(
    {
        "bad_words",
        "batch_invariant",
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


def _make(context: RunnerContext[NoOptions]) -> ModelRunner[NoOptions]:
    from enginebay_runner_v1.runner import RunnerV1

    return RunnerV1(context)


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[NoOptions]]:
    """Register ``v1``."""
    return [
        RunnerPlugin(
            name="v1",
            summary="Eager: transformers' own modules with paged attention through its attention interface.",
            factory=_make,
            capabilities=RunnerCapabilities(
                devices=("cpu", "cuda"),
                features=_FEATURES,
                sleep=True,
                update_weights=True,
                send_weights=True,
                tensor_parallel=True,
                pipeline_parallel=True,
                max_draft_tokens=64,
                attention="paged_sdpa",
            ),
            requires_modules={"torch": "torch", "transformers": "transformers"},
            supports=supports,
            splits=splits,
            preference=10,
        )
    ]

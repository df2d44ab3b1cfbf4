"""Whether the requests that run can go on with other parts. Pure; what does not fit is refused by the request's id."""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.admission.params import check_features
from enginebay.errors import CapabilityError, InvalidRequest, RequestTooLong
from enginebay.messages import EngineRequest, SamplingParams

__all__ = ["check_one", "check_served", "check_sizes"]


def check_served(requests: Iterable[EngineRequest], limits: AdmissionLimits) -> None:
    """Raise ``CapabilityError`` for the first request that asks for what ``limits.features`` does not name."""
    for one in requests:
        try:
            check_features(one.params, limits)
        except InvalidRequest as error:
            raise _cannot(one, error) from error


def check_sizes(requests: Iterable[EngineRequest], limits: AdmissionLimits, *, longest: int) -> None:
    """Raise ``CapabilityError`` for the first request that could not run to its end in the KV cache of ``limits``.

    ``longest``: how many tokens a request might have when these were admitted, which is where they end.
    """
    for one in requests:
        try:
            _check_end(min(len(one.prompt_token_ids) + one.params.max_tokens, longest), limits)
            limits.check_fits(len(one.prompt_token_ids), one.params.max_tokens)
        except RequestTooLong as error:
            raise _cannot(one, error) from error


def check_one(num_prompt_tokens: int, params: SamplingParams, limits: AdmissionLimits) -> None:
    """Raise ``InvalidRequest`` for a request that was looked at while other parts were in force, and does not fit."""
    check_features(params, limits)
    limits.check_fits(num_prompt_tokens, params.max_tokens)


def _check_end(most: int, limits: AdmissionLimits) -> None:
    if limits.max_model_len is not None and most > limits.max_model_len:
        raise RequestTooLong(f"it may come to {most} tokens, and a request could have {limits.max_model_len}")


def _cannot(one: EngineRequest, error: InvalidRequest) -> CapabilityError:
    return CapabilityError(f"request {one.request_id!r:.80}, which runs, could not go on: {error}")

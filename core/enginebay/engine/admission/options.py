"""What a request has beside its prompt and its sampling parameters, one for all prompts of a batch or one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from enginebay.engine.admission.admit import Ask
from enginebay.errors import InvalidRequest, did_you_mean

__all__ = ["BatchOptions", "RequestOptions", "check_known", "for_each"]

_KNOWN = sorted(set(Ask.__dataclass_fields__) - {"prompt_token_ids", "params"})


class RequestOptions(TypedDict, total=False):
    """``request_id`` is unique among the unfinished requests; without one, it is drawn.

    ``priority``: smaller goes first, where the scheduler looks at it. ``tenant``: whom the request is for, where the
    scheduler shares fairly. ``timeout``: seconds from now; the request then ends with the error "deadline".
    ``cache_salt``: requests share cached prompts of equal salt only. ``extra``: bytes for plugins, by their names.
    ``traceparent``: the W3C trace context of the caller; without one, the current span's.
    """

    request_id: str
    priority: int
    tenant: str
    timeout: float | None
    cache_salt: str
    extra: Mapping[str, bytes]
    adapter: str
    traceparent: str


class BatchOptions(TypedDict, total=False):
    """The same for several prompts: one value for all of them, or a list with one each."""

    priority: int | Sequence[int]
    tenant: str | Sequence[str]
    timeout: float | Sequence[float | None] | None
    cache_salt: str | Sequence[str]
    extra: Mapping[str, bytes] | Sequence[Mapping[str, bytes]]
    adapter: str | Sequence[str]
    traceparent: str | Sequence[str]


def check_known(options: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` for a name that is no option of a request."""
    for name in options:
        if name not in _KNOWN:
            raise InvalidRequest(
                f"unknown request option {name!r}.{did_you_mean(name, _KNOWN)} Known options: {', '.join(_KNOWN)}; "
                "how tokens are drawn is said in SamplingParams",
                param=name,
            )


def for_each(options: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The options of each of ``count`` prompts; a list or tuple holds one for each."""
    check_known(options)
    for name in options:
        if name not in BatchOptions.__annotations__:
            raise InvalidRequest(
                f"{name} is for streams alone; an answer of generate or chat has its own, drawn for it", param=name
            )
    every: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in options.items():
        if isinstance(value, list | tuple) and len(value) != count:
            raise InvalidRequest(
                f"there are {count} prompts and {len(value)} values of {name}: give one for all, or one each",
                param=name,
            )
        for index, one in enumerate(every):
            one[name] = value[index] if isinstance(value, list | tuple) else value
    return every

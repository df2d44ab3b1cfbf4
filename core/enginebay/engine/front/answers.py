"""What a caller of ``generate`` and ``chat`` gets: a ``Completion`` per prompt, with a ``Choice`` per answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from enginebay.engine.admission.admit import Ask
from enginebay.errors import EnginebayError, InvalidRequest
from enginebay.messages import FinishReason, RequestOutput, SamplingParams, TokenLogprob, Usage

__all__ = ["Choice", "Completion", "completion", "lost", "refusal"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer to a prompt. ``error`` is set when it failed.

    ``logprobs`` has one entry per token of ``token_ids``; None when they were not asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What came of one prompt: ``choices``, as many as ``n`` asked for. The attributes of an answer are the first's.

    ``prompt`` is the text that was given, or None for token ids; ``prompt_token_ids`` are those that the model saw.
    ``usage`` is that of all choices, the prompt counted once. ``prompt_logprobs`` has one entry per prompt token, of
    which the first is None: nothing comes before it. None when they were not asked for, or when the request ended
    before all of the prompt was computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first choice's tokens."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token that ended the first choice."""
        return self.choices[0].stop_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """The first choice's log-probabilities."""
        return self.choices[0].logprobs

    @property
    def error(self) -> str | None:
        """What went wrong, of the first choice that failed; None when none did."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)


def completion(ask: Ask, prompt: str | None, outputs: Sequence[RequestOutput]) -> Completion:
    """The whole answer, from the merged deltas of a request whose choices have all ended."""
    params = ask.params
    ordered = sorted(outputs, key=lambda output: output.choice)
    assert [output.choice for output in ordered] == list(range(params.n)), "an answer has all its choices"
    told = (None, *ordered[0].prompt_logprobs)
    is_told = params.prompt_logprobs is not None and len(told) == len(ask.prompt_token_ids)
    return Completion(
        request_id=ask.request_id,
        prompt=prompt,
        prompt_token_ids=ask.prompt_token_ids,
        choices=tuple(_choice(output, params) for output in ordered),
        usage=_sum([output.usage or Usage() for output in ordered]),
        prompt_logprobs=told if is_told else None,
    )


def lost(ask: Ask, prompt: str | None, outputs: Sequence[RequestOutput], error: EnginebayError) -> Completion:
    """What stands for an answer when the engine, or the part of it that had the request, ended before it did."""
    ended = {output.choice: _choice(output, ask.params) for output in outputs}
    missing = Choice(index=0, text="", token_ids=(), finish_reason=FinishReason.ERROR, error=str(error))
    return Completion(
        request_id=ask.request_id,
        prompt=prompt,
        prompt_token_ids=ask.prompt_token_ids,
        choices=tuple(ended.get(index, replace(missing, index=index)) for index in range(ask.params.n)),
        usage=_sum([output.usage or Usage() for output in outputs]),
    )


def refusal(prompt: object, error: InvalidRequest) -> Completion:
    """What stands for an answer when the request was refused before it ran."""
    failed = Choice(index=0, text="", token_ids=(), finish_reason=FinishReason.ERROR, error=str(error))
    return Completion(
        request_id="",
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=(),
        choices=(failed,),
        usage=Usage(),
    )


def _choice(output: RequestOutput, params: SamplingParams) -> Choice:
    assert output.finish_reason is not None, "an answer is complete when its request has ended"
    assert output.offset == 0, "an answer has all its tokens"
    return Choice(
        index=output.choice,
        text=output.text,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        error=output.error,
        logprobs=None if params.logprobs is None else output.logprobs,
    )


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(**{name: sum(getattr(usage, name) for usage in usages) for name in Usage.__struct_fields__})
